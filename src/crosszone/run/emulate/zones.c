/* Machines of several zones on one: each node is a network, process, mount and host-name namespace with one TUN
 * interface, and this program is the network between them.
 *
 *     zones FOLDER              FOLDER/plan: the lines below; FOLDER/counters: a file that is mapped and kept up to date;
 *                               FOLDER/hosts: the names of all nodes, their /etc/hosts
 *
 *     node NAME ADDRESS ZONE    a machine; ZONE counts from 0, and -1 is no zone: its packets pass freely
 *     link ZONE ZONE BIT_S DELAY_NS LOSS    one direction; BIT_S 0: no limit; LOSS: share of packets
 *     up ZONE BIT_S             all that leaves a zone
 *     down ZONE BIT_S           all that enters a zone
 *     seed NUMBER               of the losses
 *
 * It prints `ready PID PID ...`, the first process of each node, and runs until its standard input ends. Whatever ends
 * it, the kernel ends the nodes with it: their first processes are told to die with this one, all others die with the
 * first of their namespace, and the interfaces vanish with the namespaces. At its end it deletes the folder with all
 * that is in it, for who started it may no longer be there to do so.
 *
 * A packet leaves when the link, the zone's uplink and the other zone's downlink have carried what came before it, and
 * arrives a delay later. The kernel hands over up to 64 KB of a TCP stream as one packet; its size on the wire counts
 * the headers of the packets it stands for. With losses the kernel cuts the stream itself, so that a loss is one packet.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/if_tun.h>
#include <linux/virtio_net.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MAX_NODES = 256, MAX_ZONES = 100, MTU = 1500, BIGGEST = 65536 + 64, AT_ONCE = 64 };
static const int64_t LEAST_QUEUE = 512 * 1024; /* bytes; otherwise twice what the path holds */

typedef struct Packet {
    struct Packet *next;
    int64_t due;
    int to, length;
    char data[];
} Packet;

typedef struct { /* what a rate lets through: a link, an uplink, a downlink */
    double bits_per_s; /* 0: no limit */
    int64_t free_ns;   /* when it has carried what was accepted */
} Pipe;

typedef struct { /* mapped, read by the caller while it changes */
    uint64_t packets, bytes, lost, dropped, late_ns, latest_ns;
} Counter;

typedef struct {
    Pipe pipe;
    int64_t delay_ns;
    double loss;
    Packet *first, *last;
    Counter *counter;
} Link;

typedef struct {
    char name[64];
    uint32_t address; /* network order */
    int zone;         /* -1: none */
    int tun;
    pid_t pid;
} Node;

static Node nodes[MAX_NODES];
static Link links[MAX_ZONES][MAX_ZONES];
static Pipe ups[MAX_ZONES], downs[MAX_ZONES];
static int node_count, zone_count, losing;
static uint64_t random_state = 0x9E3779B97F4A7C15u;

static void die(const char *form, ...) {
    va_list list;
    va_start(list, form);
    vfprintf(stderr, form, list);
    va_end(list);
    fprintf(stderr, errno ? ": %s\n" : "\n", strerror(errno));
    exit(1);
}

static int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static double uniform(void) { /* xorshift64* */
    random_state ^= random_state >> 12;
    random_state ^= random_state << 25;
    random_state ^= random_state >> 27;
    return (double)((random_state * 0x2545F4914F6CDD1Du) >> 11) / 9007199254740992.0;
}

/* --- the file ------------------------------------------------------------------------------------------------- */

static void zone_in_range(int zone, int line) {
    errno = 0;
    if (zone < 0 || zone >= MAX_ZONES) die("line %d: zone %d is not one of 0..%d", line, zone, MAX_ZONES - 1);
    if (zone >= zone_count) zone_count = zone + 1;
}

static void add_node(const char *name, const char *address, int zone, int line) {
    errno = 0;
    if (node_count == MAX_NODES) die("line %d: more than %d nodes", line, MAX_NODES);
    Node *node = &nodes[node_count++];
    snprintf(node->name, sizeof node->name, "%s", name);
    node->zone = zone;
    if (inet_pton(AF_INET, address, &node->address) != 1) die("line %d: %s is not an address", line, address);
}

static void read_file(const char *path) {
    FILE *file = fopen(path, "r");
    if (!file) die("%s", path);
    char text[256], name[64], address[64];
    for (int line = 1; fgets(text, sizeof text, file); line++) {
        int a, b;
        long long delay;
        double rate, loss;
        unsigned long long seed;
        if (sscanf(text, "node %63s %63s %d", name, address, &a) == 3) {
            if (a != -1) zone_in_range(a, line);
            add_node(name, address, a, line);
        } else if (sscanf(text, "link %d %d %lf %lld %lf", &a, &b, &rate, &delay, &loss) == 5) {
            zone_in_range(a, line);
            zone_in_range(b, line);
            links[a][b].pipe.bits_per_s = rate;
            links[a][b].delay_ns = delay;
            links[a][b].loss = loss;
            losing |= loss > 0;
        } else if (sscanf(text, "up %d %lf", &a, &rate) == 2) {
            zone_in_range(a, line);
            ups[a].bits_per_s = rate;
        } else if (sscanf(text, "down %d %lf", &a, &rate) == 2) {
            zone_in_range(a, line);
            downs[a].bits_per_s = rate;
        } else if (sscanf(text, "seed %llu", &seed) == 1) {
            random_state ^= seed * 2 + 1;
        } else {
            errno = 0;
            die("%s, line %d cannot be read: %s", path, line, text);
        }
    }
    fclose(file);
}

/* --- nodes ---------------------------------------------------------------------------------------------------- */

static void set_interface(const char *name, uint32_t address) {
    int control = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (control < 0) die("socket");
    struct ifreq request = {0};
    snprintf(request.ifr_name, IFNAMSIZ, "%s", name);
    if (address) {
        struct sockaddr_in *in = (struct sockaddr_in *)&request.ifr_addr;
        in->sin_family = AF_INET;
        in->sin_addr.s_addr = address;
        if (ioctl(control, SIOCSIFADDR, &request)) die("address of %s", name);
        in->sin_addr.s_addr = htonl(0xFFFF0000u); /* all nodes are neighbours: the other two bytes tell them apart */
        if (ioctl(control, SIOCSIFNETMASK, &request)) die("netmask of %s", name);
        request.ifr_mtu = MTU;
        if (ioctl(control, SIOCSIFMTU, &request)) die("packet size of %s", name);
        request.ifr_qlen = 1000;
        if (ioctl(control, SIOCSIFTXQLEN, &request)) die("queue of %s", name);
    }
    if (ioctl(control, SIOCGIFFLAGS, &request)) die("flags of %s", name);
    request.ifr_flags |= IFF_UP | IFF_RUNNING;
    if (ioctl(control, SIOCSIFFLAGS, &request)) die("%s cannot be brought up", name);
    close(control);
}

static int open_tun(const char *name, uint32_t address) {
    int tun = open("/dev/net/tun", O_RDWR | O_CLOEXEC | O_NONBLOCK);
    if (tun < 0) die("/dev/net/tun");
    struct ifreq request = {0};
    request.ifr_flags = IFF_TUN | IFF_NO_PI | IFF_VNET_HDR;
    snprintf(request.ifr_name, IFNAMSIZ, "%s", name);
    if (ioctl(tun, TUNSETIFF, &request)) die("a TUN interface cannot be made");
    int header = sizeof(struct virtio_net_hdr);
    if (ioctl(tun, TUNSETVNETHDRSZ, &header)) die("TUNSETVNETHDRSZ");
    unsigned offload = losing ? 0 : TUN_F_CSUM | TUN_F_TSO4;
    if (ioctl(tun, TUNSETOFFLOAD, offload)) die("TUNSETOFFLOAD");
    set_interface(request.ifr_name, address);
    return tun;
}

static void pass_on(int socket_, int descriptor) {
    char byte = 0, room[CMSG_SPACE(sizeof(int))] = {0};
    struct iovec part = {&byte, 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
    struct cmsghdr *head = CMSG_FIRSTHDR(&message);
    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SCM_RIGHTS;
    head->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(head), &descriptor, sizeof(int));
    if (sendmsg(socket_, &message, 0) != 1) die("sendmsg");
}

static int taken_over(int socket_) {
    char byte, room[CMSG_SPACE(sizeof(int))] = {0};
    struct iovec part = {&byte, 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
    if (recvmsg(socket_, &message, MSG_CMSG_CLOEXEC) != 1 || !CMSG_FIRSTHDR(&message)) {
        errno = 0;
        die("a node did not start");
    }
    int descriptor;
    memcpy(&descriptor, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof(int));
    return descriptor;
}

/* Nodes find each other, and themselves, by name. */
static void write_hosts(const char *path) {
    FILE *file = fopen(path, "w");
    if (!file) die("%s", path);
    fprintf(file, "127.0.0.1 localhost\n");
    for (int i = 0; i < node_count; i++) {
        char address[INET_ADDRSTRLEN];
        inet_ntop(AF_INET, &nodes[i].address, address, sizeof address);
        fprintf(file, "%s %s\n", address, nodes[i].name);
    }
    if (fclose(file)) die("%s", path);
}

static void live_as_first_process(Node *node, int up, pid_t parent, const char *hosts) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != 0 && getppid() != parent) _exit(1);
    prctl(PR_SET_NAME, "zones-node");
    if (sethostname(node->name, strlen(node->name))) die("host name");
    if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL)) die("mount namespace");
    if (mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL)) die("/proc");
    /* /sys shows the interfaces of the namespace it was mounted in; some programs look them up there */
    (void)!mount("sysfs", "/sys", "sysfs", MS_NOSUID | MS_NODEV | MS_NOEXEC | MS_RDONLY, NULL);
    if (access("/etc/hosts", F_OK) == 0 && mount(hosts, "/etc/hosts", NULL, MS_BIND, NULL)) die("/etc/hosts");
    set_interface("lo", 0);
    pass_on(up, open_tun("wan0", node->address));
    close(up);
    close(STDIN_FILENO);
    close(STDOUT_FILENO);
    for (;;) /* whoever lost its parent is ours to bury */
        if (wait(NULL) < 0) pause();
}

static void buried(int signal_) { (void)signal_; }

static void start_node(Node *node, const char *hosts) {
    int ends[2];
    pid_t parent = getpid();
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends)) die("socketpair");
    node->pid = (pid_t)syscall(SYS_clone, CLONE_NEWNET | CLONE_NEWPID | CLONE_NEWNS | CLONE_NEWUTS | SIGCHLD, 0, 0, 0, 0);
    if (node->pid < 0) die("a namespace cannot be made");
    if (node->pid == 0) {
        close(ends[0]);
        struct sigaction wake = {.sa_handler = buried};
        sigaction(SIGCHLD, &wake, NULL);
        live_as_first_process(node, ends[1], parent, hosts);
    }
    close(ends[1]);
    node->tun = taken_over(ends[0]);
    close(ends[0]);
}

/* --- the network ---------------------------------------------------------------------------------------------- */

static int64_t wire_bytes(const char *data, int length) {
    const struct virtio_net_hdr *head = (const struct virtio_net_hdr *)data;
    int64_t bytes = length - (int)sizeof *head;
    int headers = head->hdr_len;
    if (head->gso_type == VIRTIO_NET_HDR_GSO_NONE || !head->gso_size || bytes <= headers) return bytes;
    int64_t parts = (bytes - headers + head->gso_size - 1) / head->gso_size;
    return bytes + (parts - 1) * headers;
}

static int64_t carried(Pipe *pipe, int64_t now, int64_t bytes) {
    if (pipe->bits_per_s <= 0) return now;
    int64_t start = pipe->free_ns > now ? pipe->free_ns : now;
    return start + (int64_t)((double)bytes * 8e9 / pipe->bits_per_s);
}

static int is_full(const Pipe *pipe, int64_t now, int64_t delay_ns) {
    if (pipe->bits_per_s <= 0 || pipe->free_ns <= now) return 0;
    double waiting = (double)(pipe->free_ns - now) * pipe->bits_per_s / 8e9;
    double limit = 2 * (double)(2 * delay_ns) * pipe->bits_per_s / 8e9;
    return waiting > (limit > (double)LEAST_QUEUE ? limit : (double)LEAST_QUEUE);
}

static void deliver(int to, const char *data, int length) {
    if (write(nodes[to].tun, data, (size_t)length) < 0 && errno != EAGAIN && errno != EINVAL && errno != EIO)
        die("packet to %s", nodes[to].name);
}

static void accept_packet(int from, const char *data, int length, int64_t now) {
    const char *ip = data + sizeof(struct virtio_net_hdr);
    if (length < (int)sizeof(struct virtio_net_hdr) + 20 || (ip[0] & 0xF0) != 0x40) return; /* IPv4 only */
    uint32_t address;
    memcpy(&address, ip + 16, 4);
    int to = 0;
    while (to < node_count && nodes[to].address != address) to++;
    if (to == node_count) return;
    int a = nodes[from].zone, b = nodes[to].zone;
    if (a < 0 || b < 0) {
        deliver(to, data, length);
        return;
    }
    Link *link = &links[a][b];
    int64_t bytes = wire_bytes(data, length);
    if (link->loss > 0 && uniform() < link->loss) {
        link->counter->lost++;
        return;
    }
    Pipe *pipes[3] = {&link->pipe, a == b ? NULL : &ups[a], a == b ? NULL : &downs[b]};
    int64_t leaves = now;
    for (int i = 0; i < 3; i++)
        if (pipes[i] && is_full(pipes[i], now, link->delay_ns)) {
            link->counter->dropped++;
            return;
        }
    for (int i = 0; i < 3; i++)
        if (pipes[i]) {
            int64_t done = carried(pipes[i], now, bytes);
            if (pipes[i]->bits_per_s > 0) pipes[i]->free_ns = done;
            if (done > leaves) leaves = done;
        }
    link->counter->packets++;
    link->counter->bytes += (uint64_t)bytes;
    if (leaves + link->delay_ns <= now) {
        deliver(to, data, length);
        return;
    }
    Packet *packet = malloc(sizeof *packet + (size_t)length);
    if (!packet) die("memory");
    *packet = (Packet){.due = leaves + link->delay_ns, .to = to, .length = length};
    memcpy(packet->data, data, (size_t)length);
    if (link->last) link->last->next = packet;
    else link->first = packet;
    link->last = packet;
}

/* What is due is handed over; when the next packet is, or -1. */
static int64_t hand_over(int64_t now) {
    int64_t next = -1;
    for (int a = 0; a < zone_count; a++)
        for (int b = 0; b < zone_count; b++) {
            Link *link = &links[a][b];
            while (link->first && link->first->due <= now) {
                Packet *packet = link->first;
                uint64_t late = (uint64_t)(now - packet->due);
                link->counter->late_ns += late;
                if (late > link->counter->latest_ns) link->counter->latest_ns = late;
                deliver(packet->to, packet->data, packet->length);
                link->first = packet->next;
                if (!link->first) link->last = NULL;
                free(packet);
            }
            if (link->first && (next < 0 || link->first->due < next)) next = link->first->due;
        }
    return next;
}

static void run(void) {
    static char data[BIGGEST];
    static struct pollfd polled[MAX_NODES + 1];
    for (int i = 0; i < node_count; i++) polled[i] = (struct pollfd){.fd = nodes[i].tun, .events = POLLIN};
    polled[node_count] = (struct pollfd){.fd = STDIN_FILENO, .events = POLLIN};
    for (;;) {
        int64_t next = hand_over(now_ns());
        struct timespec wait = {0}, *limit = NULL;
        if (next >= 0) {
            int64_t left = next - now_ns();
            if (left < 0) left = 0;
            wait = (struct timespec){left / 1000000000, left % 1000000000};
            limit = &wait;
        }
        if (ppoll(polled, (nfds_t)node_count + 1, limit, NULL) < 0 && errno != EINTR) die("ppoll");
        for (int i = 0; i < node_count; i++) {
            if (!polled[i].revents) continue;
            for (int n = 0; n < AT_ONCE; n++) {
                ssize_t length = read(nodes[i].tun, data, sizeof data);
                if (length <= 0) break;
                accept_packet(i, data, (int)length, now_ns());
            }
        }
        if (polled[node_count].revents) {
            char ignored[256];
            if (read(STDIN_FILENO, ignored, sizeof ignored) <= 0) return;
        }
    }
}

/* The nodes end, and then the folder, in which they may have written, is deleted. */
static void tidy(const char *folder) {
    for (int i = 0; i < node_count; i++) kill(nodes[i].pid, SIGKILL);
    for (int i = 0; i < node_count; i++) waitpid(nodes[i].pid, NULL, 0);
    execlp("rm", "rm", "-rf", "--", folder, (char *)NULL);
    die("rm");
}

int main(int count, char **words) {
    if (count != 2) {
        fprintf(stderr, "usage: zones FOLDER\n");
        return 2;
    }
    char plan[4096], counted[4096], hosts[4096];
    snprintf(plan, sizeof plan, "%s/plan", words[1]);
    snprintf(counted, sizeof counted, "%s/counters", words[1]);
    snprintf(hosts, sizeof hosts, "%s/hosts", words[1]);
    read_file(plan);
    write_hosts(hosts);
    size_t room = sizeof(Counter) * (size_t)(zone_count * zone_count);
    int file = open(counted, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (file < 0 || ftruncate(file, (off_t)room)) die("%s", counted);
    Counter *counters = mmap(NULL, room ? room : 1, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (counters == MAP_FAILED) die("%s", counted);
    for (int a = 0; a < zone_count; a++)
        for (int b = 0; b < zone_count; b++) links[a][b].counter = &counters[a * zone_count + b];
    prctl(PR_SET_TIMERSLACK, 1);
    for (int i = 0; i < node_count; i++) start_node(&nodes[i], hosts);
    printf("ready");
    for (int i = 0; i < node_count; i++) printf(" %d", nodes[i].pid);
    printf("\n");
    fflush(stdout);
    run();
    tidy(words[1]);
}
