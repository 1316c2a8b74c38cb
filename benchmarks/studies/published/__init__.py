"""Results that others published of training over wide-area links, each beside what the models here say of it."""
