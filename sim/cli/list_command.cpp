#include <fmt/format.h>

#include <iostream>

#include "models/catalog.hpp"
#include "models/gpu.hpp"
#include "models/link.hpp"
#include "sim/cli/command.hpp"
#include "sim/core/error.hpp"
#include "sim/launch/flag_table.hpp"
#include "sim/report/schemas.hpp"
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

Rows links_rows() {
  Rows rows;
  for (const std::string& name : models::link_names()) {
    const models::LinkSpec link = models::find_link(name);
    rows.emplace_back(
        name,
        link.bytes_per_second > 0
            ? fmt::format("{:>6.1f} GB/s a port in one direction, of which {:.0f} % are reached",
                          link.bytes_per_second * 1e-9, link.efficiency * 100)
            : fmt::format("as fast as the card's, of which {:.0f} % are reached",
                          link.efficiency * 100));
  }
  return rows;
}

Rows engines_rows() {
  Rows rows;
  for (const launch::Engine engine :
       {launch::Engine::kVllm, launch::Engine::kSglang, launch::Engine::kTrtllm}) {
    std::vector<std::string> versions;
    for (const Version& version : launch::known_versions(engine).versions) {
      versions.push_back(to_string(version));
    }
    rows.emplace_back(launch::to_string(engine),
                      fmt::format("versions {}", fmt::join(versions, " ")));
  }
  return rows;
}

Rows formats_rows() {
  Rows rows;
  for (const workloads::TraceFormat& format : workloads::trace_formats()) {
    rows.emplace_back(format.name, fmt::format("{} [{}]", format.about, format.signature));
  }
  return rows;
}

Rows schemas_rows() {
  Rows rows;
  for (const std::string& name : schemas::names()) {
    rows.emplace_back(name, OrderedJson::parse(schemas::text(name)).at("title").get<std::string>());
  }
  return rows;
}

po::options_description options() {
  po::options_description options("Options");
  options.add_options()(
      "topic", po::value<std::string>()->value_name("models|gpus|links|engines|formats|schemas"),
      "what to list")("json", po::bool_switch(), "print JSON")("help,h", po::bool_switch(),
                                                               "show this help");
  return options;
}

Rows rows_of(const std::string& topic) {
  if (topic == "models") {
    return models_rows();
  }
  if (topic == "gpus") {
    return gpus_rows();
  }
  if (topic == "links") {
    return links_rows();
  }
  if (topic == "engines") {
    return engines_rows();
  }
  return topic == "formats" ? formats_rows() : schemas_rows();
}

int run(const po::variables_map& values) {
  if (values.count("topic") == 0) {
    throw ConfigError(Problem{"command line", "list", "",
                              "one of: models, gpus, links, engines, formats, schemas", ""});
  }
  const Rows rows = rows_of(values["topic"].as<std::string>());
  if (values["json"].as<bool>()) {
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

}  // namespace

Command list_command() {
  return {.name = "list",
          .purpose = "models, gpus, links, engines, formats and schemas that are known",
          .synopsis = "oomcast list models|gpus|links|engines|formats|schemas [--json]",
          .about = "What the built-in catalogs hold.",
          .examples = {{"Cards with their memory and other names", "oomcast list gpus"},
                       {"What JSON is written, for oomcast schema", "oomcast list schemas"}},
          .options = options,
          .word = "topic",
          .most_words = 1,
          .run = run};
}

}  // namespace oomcast::cli
