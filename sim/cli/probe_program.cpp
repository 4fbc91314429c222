#include "sim/cli/probe_program.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <cstdio>
#include <filesystem>
#include <utility>
#include <vector>

#include "sim/cli/progress.hpp"
#include "sim/core/error.hpp"
#include "sim/core/json.hpp"

extern char** environ;

namespace oomcast::cli {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr const char* kProgram = "oomcast-probes";

[[noreturn]] void refuse(const std::string& found, const std::string& expected,
                         const std::string& hint = "") {
  throw ConfigError(Problem{"command line", "--from-probes", found, expected, hint});
}

void require_gpu() {
  // The driver's devices: its own, and that of Windows' Linux subsystem.
  for (const char* path : {"/dev/nvidiactl", "/proc/driver/nvidia/version", "/dev/dxg"}) {
    std::error_code error;
    if (fs::exists(path, error)) {
      return;
    }
  }
  refuse("no NVIDIA driver on this machine", "a machine with a GPU",
         "or samples from one: --replay-samples FILE");
}

// A pipe whose ends the kernel closes in other programs; -1 once closed.
class Pipe {
 public:
  Pipe() {
    if (::pipe2(ends_.data(), O_CLOEXEC) != 0) {
      refuse(std::strerror(errno), "a pipe to the probes");
    }
  }
  ~Pipe() {
    close_end(0);
    close_end(1);
  }
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;

  [[nodiscard]] int reading() const { return ends_[0]; }
  [[nodiscard]] int writing() const { return ends_[1]; }
  void close_writing() { close_end(1); }

 private:
  void close_end(std::size_t end) {
    if (ends_[end] >= 0) {
      ::close(ends_[end]);
      ends_[end] = -1;
    }
  }
  std::array<int, 2> ends_{-1, -1};
};

// A program with its two outputs piped here. Killed if it still runs when this goes.
class Child {
 public:
  explicit Child(const std::vector<std::string>& words) {
    std::vector<char*> arguments;
    for (const std::string& word : words) {
      arguments.push_back(const_cast<char*>(word.c_str()));
    }
    arguments.push_back(nullptr);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, out_.writing(), STDOUT_FILENO);
    posix_spawn_file_actions_adddup2(&actions, err_.writing(), STDERR_FILENO);
    const int error =
        ::posix_spawnp(&pid_, words.front().c_str(), &actions, nullptr, arguments.data(), environ);
    posix_spawn_file_actions_destroy(&actions);
    if (error != 0) {
      pid_ = -1;
      refuse(words.front(), "a program that can be run", std::strerror(error));
    }
    out_.close_writing();
    err_.close_writing();
  }
  ~Child() {
    if (pid_ > 0) {
      ::kill(pid_, SIGKILL);
      wait();
    }
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  [[nodiscard]] int out() const { return out_.reading(); }
  [[nodiscard]] int err() const { return err_.reading(); }
  void stop() const { ::kill(pid_, SIGTERM); }

  // The exit status as wait() gives it.
  int wait() {
    int status = 0;
    while (::waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
    }
    pid_ = -1;
    return status;
  }

 private:
  Pipe out_;
  Pipe err_;
  pid_t pid_ = -1;
};

// What a program prints on its second output: "progress 12 80 graph" says how far it is, any other
// line may be why it ends.
class Remarks {
 public:
  void take(std::string_view text) {
    for (const char letter : text) {
      if (letter == '\n') {
        take_line();
      } else if (line_.size() < kLongest) {
        line_ += letter;
      }
    }
  }
  [[nodiscard]] const std::string& last() const { return last_; }

 private:
  static constexpr std::size_t kLongest = 2000;

  void take_line() {
    std::int64_t done = 0;
    std::int64_t all = 0;
    if (std::sscanf(line_.c_str(), "progress %ld %ld", &done, &all) == 2) {
      if (!progress_) {
        progress_.emplace("measurements", all);
      }
      (*progress_)(done);
    } else if (!line_.empty()) {
      last_ = line_;
    }
    line_.clear();
  }

  std::string line_;
  std::string last_;
  std::optional<Progress> progress_;
};

struct Ended {
  std::string out;
  std::string last_remark;
  int status = 0;
  bool too_long = false;
};

// Reads both outputs until they close.
Ended run_to_end(const std::vector<std::string>& words, std::chrono::seconds limit) {
  Child child(words);
  Ended ended;
  Remarks remarks;
  std::string chunk(std::size_t{1} << 16, '\0');
  std::array<pollfd, 2> sources = {{{child.out(), POLLIN, 0}, {child.err(), POLLIN, 0}}};
  const Clock::time_point until = Clock::now() + limit;
  while (sources[0].fd >= 0 || sources[1].fd >= 0) {
    if (Clock::now() > until && !ended.too_long) {
      ended.too_long = true;
      child.stop();
    }
    constexpr int kTickMs = 200;
    if (ended.too_long && Clock::now() > until + std::chrono::seconds(5)) {
      return ended;  // it does not listen: the destructor kills it
    }
    if (::poll(sources.data(), sources.size(), kTickMs) < 0 && errno != EINTR) {
      break;
    }
    for (pollfd& source : sources) {
      if (source.fd < 0 || source.revents == 0) {
        continue;
      }
      const ssize_t got = ::read(source.fd, chunk.data(), chunk.size());
      if (got <= 0) {
        source.fd = -1;
      } else if (&source == &sources[1]) {
        remarks.take(std::string_view(chunk).substr(0, static_cast<std::size_t>(got)));
      } else if (std::cmp_less(ended.out.size(), kMaxJsonFileBytes)) {
        ended.out.append(chunk, 0, static_cast<std::size_t>(got));
      }
    }
  }
  ended.status = child.wait();
  ended.last_remark = remarks.last();
  return ended;
}

// Of a build folder that knows how to make the probes.
void build_in(const fs::path& folder) {
  const Ended built = run_to_end({"cmake", "--build", folder.string(), "--target", kProgram},
                                 std::chrono::minutes(30));
  if (built.status != 0) {
    refuse("no oomcast-probes in this build", "a build with nvcc, or --probes PROGRAM",
           "configure again on a machine with CUDA 12.4 or newer");
  }
}

std::string find_or_build() {
  std::error_code error;
  const fs::path own = fs::read_symlink("/proc/self/exe", error).parent_path();
  const fs::path in_build = own / "validation" / kProgram;
  for (const fs::path& path : {own / kProgram, in_build}) {
    if (fs::exists(path, error)) {
      return path.string();
    }
  }
  if (!fs::exists(own / "CMakeCache.txt", error)) {
    refuse("no oomcast-probes beside oomcast", "--probes PROGRAM",
           "it is built with oomcast where nvcc is found");
  }
  build_in(own);
  return in_build.string();
}

}  // namespace

std::string run_probes(const ProbeRun& run) {
  // A program of the user's choice says itself what it lacks.
  if (!run.program) {
    require_gpu();
  }
  const std::string program = run.program ? *run.program : find_or_build();
  std::vector<std::string> words = {program, "--seconds", std::to_string(run.limit.count())};
  if (run.allow_shared) {
    words.emplace_back("--allow-shared");
  }
  // The program keeps the limit itself; one that does not is stopped.
  constexpr std::chrono::seconds kGrace{60};
  const Ended ended = run_to_end(words, run.limit + kGrace);
  if (ended.too_long) {
    refuse(fmt::format("no end after {} s", (run.limit + kGrace).count()), "probes that end",
           ended.last_remark);
  }
  if (!WIFEXITED(ended.status) || WEXITSTATUS(ended.status) != 0) {
    refuse(WIFEXITED(ended.status)
               ? fmt::format("exit code {} of {}", WEXITSTATUS(ended.status), program)
               : fmt::format("signal {} ended {}", WTERMSIG(ended.status), program),
           "samples", ended.last_remark);
  }
  return ended.out;
}

}  // namespace oomcast::cli
