#include <fmt/format.h>

#include <iostream>

#include "models/catalog.hpp"
#include "models/gpu.hpp"
#include "sim/cli/command.hpp"
#include "sim/core/error.hpp"
#include "sim/launch/flag_table.hpp"
#include "workloads/request_stream.hpp"

namespace oomcast::cli {
namespace {

// Name and what is worth knowing about it.
using Rows = std::vector<std::pair<std::string, std::string>>;

Rows models_rows() {
  Rows rows;
  for (const std::string& name : models::catalog_names()) {
    const models::ModelSpec spec = models::catalog_model(name);
    rows.emplace_back(name, fmt::format("{:>7.2f} B parameters, {} layers, {}",
                                        static_cast<double>(models::parameter_count(spec)) * 1e-9,
                                        spec.layer_count(), models::name_of(spec.dtype)));
  }
  return rows;
}

Rows gpus_rows() {
  Rows rows;
  for (const std::string& name : models::gpu_names()) {
    const models::GpuSpec gpu = models::find_gpu(name);
    rows.emplace_back(name,
                      fmt::format("{:>7.2f} GiB, {:>5.0f} GB/s, cc {}.{}, also: {}",
                                  to_gib(gpu.device_total), gpu.bandwidth * 1e-9, gpu.compute_major,
                                  gpu.compute_minor, fmt::join(gpu.aliases, ", ")));
  }
  return rows;
}

Rows engines_rows() {
  std::vector<std::string> versions;
  for (const Version& version : launch::known_versions(launch::Engine::kVllm).versions) {
    versions.push_back(to_string(version));
  }
  return {{"vllm", fmt::format("versions {}", fmt::join(versions, " "))}};
}

Rows formats_rows() {
  Rows rows;
  for (const workloads::TraceFormat& format : workloads::trace_formats()) {
    rows.emplace_back(format.name, fmt::format("{} [{}]", format.about, format.signature));
  }
  return rows;
}

}  // namespace

int run_list(const Arguments& arguments) {
  static const std::vector<std::string> kKinds = {"models", "gpus", "engines", "formats"};
  if (!arguments.empty() && (arguments.front() == "--help" || arguments.front() == "-h")) {
    std::cout << fmt::format("oomcast list {} [--json]\n", fmt::join(kKinds, "|"));
    return kFits;
  }
  const bool json = arguments.size() == 2 && arguments[1] == "--json";
  if (arguments.empty() || (arguments.size() > 1 && !json)) {
    throw ConfigError(Problem{"command line", "list", fmt::format("{}", fmt::join(arguments, " ")),
                              fmt::format("one of: {}", fmt::join(kKinds, ", ")), ""});
  }
  const std::string& kind = arguments.front();
  Rows rows;
  if (kind == "models") {
    rows = models_rows();
  } else if (kind == "gpus") {
    rows = gpus_rows();
  } else if (kind == "engines") {
    rows = engines_rows();
  } else if (kind == "formats") {
    rows = formats_rows();
  } else {
    throw ConfigError(Problem{"command line", "list", kind,
                              fmt::format("one of: {}", fmt::join(kKinds, ", ")),
                              did_you_mean(kind, kKinds)});
  }
  if (json) {
    OrderedJson out = OrderedJson::array();
    for (const auto& [name, about] : rows) {
      out.push_back({{"name", name}, {"about", about}});
    }
    std::cout << out.dump(2) << "\n";
    return kFits;
  }
  std::size_t widest = 0;
  for (const auto& [name, about] : rows) {
    widest = std::max(widest, name.size());
  }
  for (const auto& [name, about] : rows) {
    std::cout << fmt::format("{:<{}}  {}\n", name, widest, about);
  }
  return kFits;
}

}  // namespace oomcast::cli
