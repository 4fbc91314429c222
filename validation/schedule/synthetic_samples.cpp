// Writes what the made-up device answers as recorded samples: synthetic_samples SEED DATE. The
// files under validation/samples are its output; a test holds them against it.
#include <fmt/format.h>

#include <cstdlib>

#include "validation/schedule/schedule.hpp"
#include "validation/schedule/synthetic_device.hpp"

int main(int argc, char** argv) {
  using namespace oomcast;
  if (argc != 3) {
    fmt::print(stderr, "synthetic_samples SEED DATE\n");
    return 2;
  }
  constexpr double kNoise = 0.005;
  validation::SyntheticDevice device({}, std::strtoull(argv[1], nullptr, 10), kNoise);
  fit::ProbeSamples samples = validation::run_measurements(
      device, validation::measurements_for(device.card()), {.date = argv[2]});
  samples.synthetic = true;
  samples.about = fmt::format(
      "Synthetic: answers of validation/schedule/synthetic_device.hpp, seed {}, {} % of noise. No "
      "GPU was measured.",
      argv[1], kNoise * 100);
  fmt::print("{}\n", fit::probe_samples_json(samples).dump(1));
  return 0;
}
