#include <fmt/core.h>

#include <cstdio>
#include <iostream>
#include <new>

#include "sim/cli/command.hpp"
#include "sim/core/error.hpp"
#include "sim/run/replay.hpp"

namespace oomcast::cli {
namespace {

constexpr int kInterrupted = 130;  // as a shell reports Ctrl-C

int dispatch(const std::string& name, const Arguments& arguments) {
  if (name == "--help" || name == "-h") {
    std::cout << overview();
    return kFits;
  }
  if (name == "--version") {
    std::cout << fmt::format("oomcast {}\n", OOMCAST_VERSION);
    return kFits;
  }
  const Command& command = find_command(name);
  const auto values = parse(command, arguments);
  if (!values) {
    std::cout << help_text(command);
    return kFits;
  }
  return command.run(*values);
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

int run_program(int argc, char** argv) {
  const std::string command = argc > 1 ? argv[1] : "--help";
  const Arguments arguments(argv + (argc > 1 ? 2 : 1), argv + argc);
  const int code = guarded(command, arguments);
  std::cout.flush();
  if (std::fflush(stdout) != 0 || !std::cout) {
    fmt::print(stderr, "oomcast: standard output: expected a place that can be written\n");
    return kBadInput;
  }
  return code;
}

search::Workers*& other_workers() {
  static search::Workers* workers = nullptr;
  return workers;
}

}  // namespace oomcast::cli
