#include "sim/engines/vllm/known.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <optional>
#include <string>
#include <vector>

#include "models/data.hpp"

namespace oomcast::vllm {
namespace {

const Json& known(const char* section) {
  static const Json& file = models::embedded_json("engines/vllm/known.json");
  return file.at(section);
}

std::optional<Version> version_at(const Json& object, std::string_view key) {
  const auto at = object.find(key);
  return at == object.end() ? std::nullopt : parse_version(at->get<std::string>());
}

bool takes(const Json& row, const Version& version) {
  const auto since = version_at(row, "since");
  const auto until = version_at(row, "until");
  return (!since || version >= *since) && (!until || version < *until);
}

void check_speculative_keys(const launch::Launch& launch, Problems& problems) {
  const auto flag = launch.flags.find("speculative-config");
  if (flag == launch.flags.end() || !flag->second.value.is_object()) {
    return;
  }
  const Json& rows = known("speculative_config");
  std::vector<std::string> valid;
  for (const auto& [key, row] : rows.items()) {
    if (takes(row, launch.version)) {
      valid.push_back(key);
    }
  }
  for (const auto& [key, value] : flag->second.value.items()) {
    const auto row = rows.find(key);
    if (row != rows.end() && takes(*row, launch.version)) {
      continue;
    }
    std::string hint;
    if (row != rows.end()) {
      hint = row->contains("until")
                 ? fmt::format("up to {}", row->at("until").get<std::string>())
                 : fmt::format("from {} on", row->at("since").get<std::string>());
    }
    problems.add({"launch line", "--speculative-config", key,
                  fmt::format("a key of vLLM {}: {}", launch.version_text, fmt::join(valid, ", ")),
                  hint});
  }
}

}  // namespace

void check_known(const launch::Launch& launch, const models::ModelSpec& model, Problems& problems) {
  const auto since = version_at(known("architectures"), model.architecture);
  if (since && launch.version < *since) {
    problems.add({"launch line", "model", model.architecture,
                  fmt::format("a model architecture that vLLM {} supports", launch.version_text),
                  "newer releases have it"});
  }
  check_speculative_keys(launch, problems);
}

bool adapts_embeddings(std::string_view family, const Version& version) {
  const auto since = version_at(known("lora_embeddings"), family);
  return since && version >= *since;
}

bool adapts_tied_embedding_twice(std::string_view family, const Version& version) {
  const auto until = version_at(known("lora_same_module"), family);
  return until && version < *until;
}

}  // namespace oomcast::vllm
