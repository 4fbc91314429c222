#include <fmt/core.h>

#include <algorithm>
#include <cstdio>
#include <new>

#include "sim/cli/command.hpp"
#include "sim/core/error.hpp"
#include "sim/run/replay.hpp"

namespace oomcast::cli {
namespace {

constexpr int kInterrupted = 130;  // as a shell reports Ctrl-C

constexpr const char* kUsage =
    "oomcast forecasts the GPU memory of LLM serving over time.\n"
    "\n"
    "  oomcast plan    startup of one deployment: classes, phases, KV capacity\n"
    "  oomcast replay  startup, then a request trace: timeline, peaks, outcome\n"
    "  oomcast report RECORD     a finished replay as HTML, Perfetto trace, CSV\n"
    "  oomcast explain LOG       an engine's log or out-of-memory text: causes and fixes\n"
    "  oomcast calibrate         from logs to a calibration file of one card and engine\n"
    "  oomcast list    models | gpus | engines | formats\n"
    "\n"
    "  oomcast COMMAND --help shows the options. Exit codes: 0 it fits, 2 bad input,\n"
    "  3 it does not fit or runs out of memory, 1 a bug in oomcast.\n";

int dispatch(const std::string& command, const Arguments& arguments) {
  if (command == "plan") {
    return run_plan(arguments);
  }
  if (command == "replay") {
    return run_replay(arguments);
  }
  if (command == "report") {
    return run_report(arguments);
  }
  if (command == "explain") {
    return run_explain(arguments);
  }
  if (command == "calibrate") {
    return run_calibrate(arguments);
  }
  if (command == "list") {
    return run_list(arguments);
  }
  if (command == "--help" || command == "-h" || command == "help") {
    fmt::print("{}", kUsage);
    return kFits;
  }
  if (command == "--version") {
    fmt::print("oomcast {}\n", OOMCAST_VERSION);
    return kFits;
  }
  static const std::vector<std::string> kCommands = {"plan",    "replay",    "report",
                                                     "explain", "calibrate", "list"};
  static const std::vector<std::string> kToCome = {"sweep", "limit"};
  const bool to_come = std::find(kToCome.begin(), kToCome.end(), command) != kToCome.end();
  throw ConfigError(Problem{
      "command line", "command", command, "plan, replay, report, explain, calibrate or list",
      to_come ? "this command is not there yet" : did_you_mean(command, kCommands)});
}

int guarded(const std::string& command, const Arguments& arguments) {
  try {
    return dispatch(command, arguments);
  } catch (const ConfigError& error) {
    for (const Problem& problem : error.problems()) {
      fmt::print(stderr, "oomcast: {}\n", to_string(problem));
    }
    return kBadInput;
  } catch (const Interrupted&) {
    fmt::print(stderr, "oomcast: interrupted, nothing was written\n");
    return kInterrupted;
  } catch (const ArithmeticOverflow& error) {
    fmt::print(stderr, "oomcast: input: expected smaller sizes ({})\n", error.what());
    return kBadInput;
  } catch (const std::bad_alloc&) {
    fmt::print(stderr, "oomcast: input: expected something that fits in this machine's memory\n");
    return kBadInput;
  } catch (const std::exception& error) {
    fmt::print(stderr, "oomcast: internal error: {}\nThis is a bug in oomcast.\n", error.what());
    return kBug;
  }
}

}  // namespace
}  // namespace oomcast::cli

int main(int argc, char** argv) {
  const std::string command = argc > 1 ? argv[1] : "--help";
  const oomcast::cli::Arguments arguments(argv + (argc > 1 ? 2 : 1), argv + argc);
  const int code = oomcast::cli::guarded(command, arguments);
  if (std::fflush(stdout) != 0) {
    fmt::print(stderr, "oomcast: standard output: expected a place that can be written\n");
    return oomcast::cli::kBadInput;
  }
  return code;
}
