#include "sim/cli/probe_program.hpp"

#include <fmt/format.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

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
Ended read_to_end(ChildProcess& child, std::chrono::seconds limit) {
  Ended ended;
  Remarks remarks;
  std::string chunk(std::size_t{1} << 16, '\0');
  std::array<pollfd, 2> sources = {{{child.output(), POLLIN, 0}, {child.errors(), POLLIN, 0}}};
  const Clock::time_point until = Clock::now() + limit;
  while (sources[0].fd >= 0 || sources[1].fd >= 0) {
    if (Clock::now() > until && !ended.too_long) {
      ended.too_long = true;
      child.ask_to_end();
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

Ended run_to_end(const std::vector<std::string>& words, std::chrono::seconds limit) {
  try {
    ChildProcess child({.program = words.front(), .words = words, .pipe_errors = true});
    return read_to_end(child, limit);
  } catch (const std::system_error& error) {
    refuse(error.what(), "a program that can be run");
  }
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
