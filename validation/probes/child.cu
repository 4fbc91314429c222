#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdio>

#include "validation/probes/child.hpp"
#include "validation/probes/cuda_support.cuh"

extern char** environ;

namespace oomcast::validation {
namespace {

constexpr char kDone = 'd';
constexpr char kGoOn = 'g';
constexpr int kLongestStepMs = 60'000;

// The two pipes of a child, and the child: ended when this goes.
class Child {
 public:
  Child(const std::vector<std::string>& words, const std::vector<std::string>& environment) {
    if (::pipe2(to_.data(), O_CLOEXEC) != 0 || ::pipe2(from_.data(), O_CLOEXEC) != 0) {
      throw DeviceFailure("no pipe to a child");
    }
    std::vector<char*> arguments = pointers(words);
    std::vector<char*> variables = pointers(environment);
    variables.pop_back();
    for (char** at = environ; *at != nullptr; ++at) {
      variables.push_back(*at);
    }
    variables.push_back(nullptr);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, to_[0], STDIN_FILENO);
    posix_spawn_file_actions_adddup2(&actions, from_[1], STDOUT_FILENO);
    const int error = ::posix_spawn(&pid_, "/proc/self/exe", &actions, nullptr, arguments.data(),
                                    variables.data());
    posix_spawn_file_actions_destroy(&actions);
    ::close(to_[0]);
    ::close(from_[1]);
    if (error != 0) {
      pid_ = -1;
      throw DeviceFailure("a child could not be started");
    }
  }
  ~Child() {
    ::close(to_[1]);
    ::close(from_[0]);
    if (pid_ > 0) {
      ::kill(pid_, SIGKILL);
      ::waitpid(pid_, nullptr, 0);
    }
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  void wait_for_step() const {
    pollfd source{from_[0], POLLIN, 0};
    char letter = 0;
    if (::poll(&source, 1, kLongestStepMs) != 1 || ::read(from_[0], &letter, 1) != 1 ||
        letter != kDone) {
      throw DeviceFailure("a child ended before its step was done");
    }
  }
  void go_on() const {
    if (::write(to_[1], &kGoOn, 1) != 1) {
      throw DeviceFailure("a child ended before its last step");
    }
  }
  void wait_for_end() {
    int status = 0;
    ::waitpid(pid_, &status, 0);
    pid_ = -1;
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
      throw DeviceFailure("a child failed");
    }
  }

 private:
  static std::vector<char*> pointers(const std::vector<std::string>& words) {
    std::vector<char*> out;
    for (const std::string& word : words) {
      out.push_back(const_cast<char*>(word.c_str()));
    }
    out.push_back(nullptr);
    return out;
  }

  std::array<int, 2> to_{};
  std::array<int, 2> from_{};
  pid_t pid_ = -1;
};

}  // namespace

std::vector<std::int64_t> steps_of_child(const std::string& probe, const Settings& settings,
                                         std::size_t steps,
                                         const std::vector<std::string>& environment) {
  std::vector<std::string> words = {"oomcast-probes", "--child", probe};
  for (const auto& [name, value] : settings) {
    words.push_back("--set");
    words.push_back(name + "=" + std::to_string(value));
  }
  std::vector<std::int64_t> out;
  std::int64_t before = free_bytes();
  Child child(words, environment);
  for (std::size_t i = 0; i < steps; ++i) {
    child.wait_for_step();
    const std::int64_t now = free_bytes();
    out.push_back(before - now);
    before = now;
    child.go_on();
  }
  child.wait_for_end();
  return out;
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
