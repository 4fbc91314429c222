#include <fmt/format.h>

#include <array>
#include <cctype>
#include <csignal>
#include <ctime>
#include <filesystem>

#include "sim/cli/command.hpp"

namespace oomcast::cli {
namespace {

volatile std::sig_atomic_t stop_signal = 0;

constexpr std::array<int, 3> kStopSignals = {SIGINT, SIGTERM, SIGHUP};

}  // namespace

std::string utc_now(const char* format) {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&now, &parts);
  std::array<char, 32> text{};
  const std::size_t length = std::strftime(text.data(), text.size(), format, &parts);
  return std::string(text.data(), length);
}

std::string default_folder(const std::string& model, const std::string& ending) {
  std::string name;
  for (const char letter : model.substr(model.find_last_of('/') + 1)) {
    name += std::isalnum(static_cast<unsigned char>(letter)) != 0 || letter == '.' ? letter : '-';
  }
  const std::string base =
      "results/" + utc_now("%Y%m%d-%H%M%S") + "-" + name.substr(0, 60) + ending;
  std::string path = base;
  std::error_code ignored;
  for (int i = 2; std::filesystem::exists(path, ignored); ++i) {
    path = fmt::format("{}-{}", base, i);
  }
  return path;
}

const volatile std::sig_atomic_t* stop_on_signals() {
  for (const int signal : kStopSignals) {
    std::signal(signal, [](int number) { stop_signal = number; });
  }
  return &stop_signal;
}

void stop_no_more() {
  for (const int signal : kStopSignals) {
    std::signal(signal, SIG_DFL);
  }
}

}  // namespace oomcast::cli
