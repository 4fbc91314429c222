#include "validation/probes/child.hpp"

#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <system_error>

#include "sim/core/child_process.hpp"
#include "validation/probes/cuda_support.cuh"

namespace oomcast::validation {
namespace {

constexpr char kDone = 'd';
constexpr char kGoOn = 'g';
constexpr int kLongestStepMs = 60'000;

void wait_for_step(const ChildProcess& child) {
  pollfd source{child.output(), POLLIN, 0};
  char letter = 0;
  if (::poll(&source, 1, kLongestStepMs) != 1 || ::read(child.output(), &letter, 1) != 1 ||
      letter != kDone) {
    throw DeviceFailure("a child ended before its step was done");
  }
}

void let_go_on(const ChildProcess& child) {
  if (::write(child.input(), &kGoOn, 1) != 1) {
    throw DeviceFailure("a child ended before its last step");
  }
}

std::vector<std::int64_t> steps_of(ChildProcess& child, std::int64_t before, std::size_t steps) {
  std::vector<std::int64_t> out;
  for (std::size_t i = 0; i < steps; ++i) {
    wait_for_step(child);
    const std::int64_t now = free_bytes();
    out.push_back(before - now);
    before = now;
    let_go_on(child);
  }
  const int status = child.wait();
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
    throw DeviceFailure("a child failed");
  }
  return out;
}

}  // namespace

std::vector<std::int64_t> steps_of_child(const std::string& probe, const Settings& settings,
                                         std::size_t steps,
                                         const std::vector<std::string>& environment) {
  std::vector<std::string> words = {"oomcast-probes", "--child", probe};
  for (const auto& [name, value] : settings) {
    words.push_back("--set");
    words.push_back(name + "=" + std::to_string(value));
  }
  const std::int64_t before = free_bytes();
  try {
    ChildProcess child({.program = "/proc/self/exe", .words = words, .environment = environment});
    return steps_of(child, before, steps);
  } catch (const std::system_error& error) {
    throw DeviceFailure(error.what());
  }
}

void step_done() {
  char letter = 0;
  if (::write(STDOUT_FILENO, &kDone, 1) != 1 || ::read(STDIN_FILENO, &letter, 1) != 1) {
    throw DeviceFailure("the parent ended");
  }
}

int child_main(const std::string& probe, const Settings& settings) {
  try {
    if (probe == "context") {
      context_child(settings);
    } else if (probe == "cublas") {
      cublas_child(settings);
    } else {
      throw Unsupported(probe + " has no child");
    }
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "oomcast-probes: %s: %s\n", probe.c_str(), error.what());
    return 1;
  }
}

}  // namespace oomcast::validation
