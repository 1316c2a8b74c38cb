"""The session of a browser: the token handed in once, a cookie that scripts cannot read from then on."""

from __future__ import annotations

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import Response

from crosszone.web.answers import errors_documented
from crosszone.web.body import body_documented, read_body
from crosszone.web.language import Language
from crosszone.web.security import SESSION_COOKIE, client_address
from crosszone.web.tokens import LONGEST, SESSION_S, Gate


class SessionBody(BaseModel):
    """The token that `crosszone serve` printed."""

    model_config = ConfigDict(extra="forbid", strict=True)

    token: str = Field(max_length=LONGEST, description="The token that `crosszone serve` printed.")


def session_routes(gate: Gate | None) -> APIRouter:
    """The routes of the session; a server without a gate needs none and says yes to everyone."""
    router = APIRouter(prefix="/api/v1")

    @router.post(
        "/session",
        tags=["session"],
        status_code=204,
        response_class=Response,
        responses=errors_documented(400, 413, 415),
        openapi_extra=body_documented(SessionBody, {"token": "as-printed-by-crosszone-serve"}),
    )
    async def start_session(request: Request, language: Language) -> Response:
        """Trade the token for a session cookie; a server that asks for no token sets none."""
        del language
        body = await read_body(request, SessionBody)
        answer = Response(status_code=204)
        if gate is not None:
            session = gate.opened(body.token, client_address(request))
            secure = request.url.scheme == "https"
            answer.set_cookie(
                SESSION_COOKIE,
                session,
                max_age=SESSION_S,
                path="/api/",
                httponly=True,
                samesite="strict",
                secure=secure,
            )
        return answer

    @router.delete(
        "/session", tags=["session"], status_code=204, response_class=Response, responses=errors_documented()
    )
    async def end_session(request: Request, language: Language) -> Response:
        """End the session of this browser."""
        del language
        if gate is not None and SESSION_COOKIE in request.cookies:
            gate.end(request.cookies[SESSION_COOKIE])
        answer = Response(status_code=204)
        answer.delete_cookie(SESSION_COOKIE, path="/api/", httponly=True, samesite="strict")
        return answer

    return router
