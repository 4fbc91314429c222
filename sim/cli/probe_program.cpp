#include "sim/cli/probe_program.hpp"

#include <fmt/format.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

#include "sim/cli/command.hpp"
#include "sim/cli/progress.hpp"
#include "sim/core/child_process.hpp"
#include "sim/core/error.hpp"
#include "sim/core/json.hpp"

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
  // Of what is said so far, a line that nothing ended included.
  [[nodiscard]] const std::string& last() {
    take_line();
    return last_;
  }

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
  std::string stopped;  // why it was ended before it did so itself
  int signal = 0;       // that the user sent meanwhile
};

// Stops what the user stops; a measurement that goes on alone would hold the card.
class StopSignals {
 public:
  StopSignals() : signal_(stop_on_signals()) {}
  ~StopSignals() { stop_no_more(); }
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;
  [[nodiscard]] int signal() const { return *signal_; }

 private:
  const volatile std::sig_atomic_t* signal_;
};

// A program, its two outputs and what they said so far.
class Run {
 public:
  Run(ChildProcess& child, const StopSignals& signals, std::chrono::seconds limit)
      : child_(child), signals_(signals), until_(Clock::now() + limit), limit_(limit) {
    sources_ = {{{child.output(), POLLIN, 0}, {child.errors(), POLLIN, 0}}};
  }

  // Until it ends. Its outputs say nothing of that: it may close them and go on, or leave them to
  // a program of its own.
  Ended to_end() {
    constexpr std::chrono::seconds kPatience{5};
    bool more = true;
    while (more || !child_.has_ended()) {
      const std::string why = why_stop();
      if (ended_.stopped.empty() && !why.empty()) {
        ended_.stopped = why;
        ended_.signal = signals_.signal();
        until_ = Clock::now() + kPatience;
        child_.ask_to_end();
      } else if (!ended_.stopped.empty() && Clock::now() > until_) {
        break;
      }
      more = read_some();
    }
    ended_.last_remark = remarks_.last();
    if (child_.has_ended()) {
      ended_.status = child_.wait();
    }  // else it does not listen: the destructor kills it
    return ended_;
  }

 private:
  [[nodiscard]] std::string why_stop() const {
    if (signals_.signal() != 0) {
      return fmt::format("signal {}", signals_.signal());
    }
    if (!std::cmp_less(ended_.out.size(), kMaxJsonFileBytes)) {
      return "more samples than a file holds";
    }
    return Clock::now() > until_ ? fmt::format("no end after {} s", limit_.count()) : "";
  }

  // Whether there was anything within a moment.
  bool read_some() {
    constexpr int kTickMs = 200;
    if (::poll(sources_.data(), sources_.size(), kTickMs) <= 0) {
      return false;
    }
    for (pollfd& source : sources_) {
      if (source.revents == 0) {
        continue;
      }
      const ssize_t got = ::read(source.fd, chunk_.data(), chunk_.size());
      if (got <= 0) {
        source.fd = -1;  // poll() passes over it
      } else if (&source == &sources_[1]) {
        remarks_.take(std::string_view(chunk_).substr(0, static_cast<std::size_t>(got)));
      } else if (ended_.stopped.empty()) {
        ended_.out.append(chunk_, 0, static_cast<std::size_t>(got));
      }
    }
    return true;
  }

  ChildProcess& child_;
  const StopSignals& signals_;
  Clock::time_point until_;
  std::chrono::seconds limit_;
  std::array<pollfd, 2> sources_{};
  std::string chunk_ = std::string(std::size_t{1} << 16, '\0');
  Remarks remarks_;
  Ended ended_;
};

Ended run_to_end(const std::vector<std::string>& words, std::chrono::seconds limit) {
  Ended ended;
  try {
    const StopSignals signals;  // before there is anything that a signal would leave behind
    ChildProcess child({.program = words.front(), .words = words, .pipe_errors = true});
    ended = Run(child, signals, limit).to_end();
  } catch (const std::system_error& error) {
    refuse(error.what(), "a program that can be run");
  }
  if (ended.signal != 0) {
    throw StoppedBySignal{ended.signal};
  }
  return ended;
}

// Of a build folder that knows how to make the probes.
void build_in(const fs::path& folder) {
  const Ended built = run_to_end({"cmake", "--build", folder.string(), "--target", kProgram},
                                 std::chrono::minutes(30));
  if (built.status != 0 || !built.stopped.empty()) {
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
  if (!ended.stopped.empty()) {
    refuse(ended.stopped, "probes that end by themselves", ended.last_remark);
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
