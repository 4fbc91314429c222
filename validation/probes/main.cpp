// Measures a card and prints the samples as one JSON document on standard output. `oomcast
// calibrate
// --from-probes` runs it; lines "progress DONE ALL PROBE" on standard error say how far it is.
#include <fmt/format.h>

#include <array>
#include <boost/program_options.hpp>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <string>
#include <vector>

#include "validation/probes/child.hpp"
#include "validation/probes/cuda_device.hpp"
#include "validation/schedule/schedule.hpp"

namespace oomcast::validation {
namespace {

namespace po = boost::program_options;

constexpr int kNothingMeasured = 2;

std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  ::gmtime_r(&now, &parts);
  std::array<char, 32> text{};
  std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text.data();
}

Settings read_settings(const std::vector<std::string>& words) {
  Settings out;
  for (const std::string& word : words) {
    const std::size_t sign = word.find('=');
    out[word.substr(0, sign)] =
        sign == std::string::npos ? 0 : std::strtoll(word.c_str() + sign + 1, nullptr, 10);
  }
  return out;
}

void measure(const po::variables_map& values) {
  const auto device = make_cuda_device(values["device"].as<int>());
  RunOptions options;
  options.seconds = values["seconds"].as<double>();
  options.allow_shared = values.count("allow-shared") != 0;
  options.date = utc_now();
  options.progress = [](std::size_t done, std::size_t all, const std::string& probe) {
    fmt::print(stderr, "progress {} {} {}\n", done, all, probe);
  };
  const fit::ProbeSamples samples =
      run_measurements(*device, measurements_for(device->card()), options);
  fmt::print("{}\n", fit::probe_samples_json(samples).dump(1));
}

int run(int argc, char** argv) {
  po::options_description options("oomcast-probes");
  options.add_options()("device", po::value<int>()->default_value(0), "card, as CUDA counts")(
      "seconds", po::value<double>()->default_value(300), "no measurement begins later")(
      "allow-shared", "measure although others use the card, or on a part of one")(
      "child", po::value<std::string>(), "run the child of a probe")(
      "set", po::value<std::vector<std::string>>()->composing(), "NAME=VALUE of a child")(
      "help,h", "show this help");
  po::variables_map values;
  po::store(po::parse_command_line(argc, argv, options), values);
  po::notify(values);
  if (values.count("help") != 0) {
    fmt::print("Measures a card and prints the samples as JSON.\n");
    for (const auto& option : options.options()) {
      fmt::print("  {:<28}{}\n", option->format_name() + " " + option->format_parameter(),
                 option->description());
    }
    return 0;
  }
  if (values.count("child") != 0) {
    return child_main(
        values["child"].as<std::string>(),
        read_settings(values.count("set") != 0 ? values["set"].as<std::vector<std::string>>()
                                               : std::vector<std::string>{}));
  }
  measure(values);
  return 0;
}

}  // namespace
}  // namespace oomcast::validation

int main(int argc, char** argv) {
  // A child that ends early is a failure of one measurement.
  std::signal(SIGPIPE, SIG_IGN);
  try {
    return oomcast::validation::run(argc, argv);
  } catch (const std::exception& error) {
    fmt::print(stderr, "oomcast-probes: {}\n", error.what());
    return oomcast::validation::kNothingMeasured;
  }
}
