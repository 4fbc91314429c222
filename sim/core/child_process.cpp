#include "sim/core/child_process.hpp"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <system_error>

extern char** environ;

namespace oomcast {
namespace {

// As exec() takes them, which promises not to write to them.
std::vector<char*> pointers(const std::vector<std::string>& words) {
  std::vector<char*> out;
  for (const std::string& word : words) {
    out.push_back(const_cast<char*>(word.c_str()));
  }
  return out;
}

[[noreturn]] void fail(int error, const std::string& what) {
  throw std::system_error(error, std::generic_category(), what);
}

}  // namespace

Pipe::Pipe() {
  if (::pipe2(ends_.data(), O_CLOEXEC) != 0) {
    fail(errno, "a pipe");
  }
}

Pipe::~Pipe() {
  close_end(0);
  close_end(1);
}

void Pipe::close_end(std::size_t end) {
  if (ends_[end] >= 0) {
    ::close(ends_[end]);
    ends_[end] = -1;
  }
}

ChildProcess::ChildProcess(const ChildOptions& options) {
  std::vector<char*> words = pointers(options.words);
  words.push_back(nullptr);
  std::vector<char*> environment = pointers(options.environment);
  for (char** at = environ; *at != nullptr; ++at) {
    environment.push_back(*at);
  }
  environment.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, in_.reading(), STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, out_.writing(), STDOUT_FILENO);
  if (options.pipe_errors) {
    posix_spawn_file_actions_adddup2(&actions, err_.writing(), STDERR_FILENO);
  }
  const int error = ::posix_spawnp(&pid_, options.program.c_str(), &actions, nullptr, words.data(),
                                   environment.data());
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) {
    pid_ = -1;
    fail(error, options.program);
  }
  in_.close_reading();
  out_.close_writing();
  err_.close_writing();
}

ChildProcess::~ChildProcess() {
  if (pid_ > 0) {
    ::kill(pid_, SIGKILL);
    wait();
  }
}

void ChildProcess::ask_to_end() const { ::kill(pid_, SIGTERM); }

int ChildProcess::wait() {
  int status = 0;
  while (::waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
  }
  pid_ = -1;
  return status;
}

}  // namespace oomcast
