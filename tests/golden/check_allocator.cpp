// check_allocator FILE...: runs recorded allocator calls through our allocator.
// Prints "NAME matched" or the first difference of each; exit 0 only if all matched.
#include <fmt/core.h>

#include <filesystem>
#include <string>

#include "tests/golden/allocator_check.hpp"

int main(int argc, char** argv) {
  if (argc < 2) {
    fmt::print(stderr, "usage: check_allocator FILE...\n");
    return 2;
  }
  int matched = 0;
  for (int i = 1; i < argc; ++i) {
    const std::string path = argv[i];
    std::string found;
    try {
      oomcast::workloads::LineReader in(path);
      found = oomcast::golden::check_allocator_recording(in);
    } catch (const std::exception& error) {
      found = error.what();
    }
    matched += found.empty() ? 1 : 0;
    fmt::print("{} {}\n", std::filesystem::path(path).filename().string(),
               found.empty() ? "matched" : found);
  }
  fmt::print("{} of {} matched\n", matched, argc - 1);
  return matched == argc - 1 ? 0 : 1;
}
