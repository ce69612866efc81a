#include <fmt/core.h>

int main() {
  fmt::print(stderr, "lignum: no verb given\n");
  return 2;
}
