#include "models/catalog.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <map>

#include "models/config_reader.hpp"
#include "models/data.hpp"

namespace oomcast::models {
namespace {

constexpr std::string_view kFolder = "catalog/";
constexpr std::string_view kSuffix = ".json";

std::string lower(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(), [](char letter) {
    return letter >= 'A' && letter <= 'Z' ? static_cast<char>(letter - 'A' + 'a') : letter;
  });
  return out;
}

std::string_view after_slash(std::string_view id) {
  const std::size_t slash = id.find('/');
  return slash == std::string_view::npos ? id : id.substr(slash + 1);
}

// Ids whose config is that of another entry.
std::map<std::string, std::string> aliases() {
  const std::string file = "catalog_aliases.json";
  Problems problems;
  const Json& json = embedded_json(file);
  const JsonView view(json, file, "", problems);
  std::map<std::string, std::string> out;
  if (json.is_object()) {
    for (const auto& [id, target] : json.items()) {
      out[id] = view.text(id).value_or("");
    }
  }
  problems.raise_if_any();
  return out;
}

std::string file_of(std::string_view id) {
  std::string file(id);
  const std::size_t slash = file.find('/');
  if (slash != std::string::npos) {
    file.replace(slash, 1, "__");
  }
  return std::string(kFolder) + file + std::string(kSuffix);
}

}  // namespace

std::vector<std::string> catalog_names() {
  std::vector<std::string> names;
  for (const std::string& file : embedded_names(kFolder)) {
    std::string id = file.substr(kFolder.size(), file.size() - kFolder.size() - kSuffix.size());
    const std::size_t owner = id.find("__");
    if (owner != std::string::npos) {
      id.replace(owner, 2, "/");
    }
    names.push_back(std::move(id));
  }
  for (const auto& [id, target] : aliases()) {
    names.push_back(id);
  }
  std::sort(names.begin(), names.end());
  return names;
}

ModelSpec catalog_model(std::string_view name, const Json& changes) {
  const std::vector<std::string> ids = catalog_names();
  const std::string wanted = lower(name);
  std::vector<std::string> hits;
  std::vector<std::string> choices = ids;
  for (const std::string& id : ids) {
    const std::string known = lower(id);
    if (known == wanted) {
      hits = {id};
      break;
    }
    if (wanted.find('/') == std::string::npos && after_slash(known) == wanted) {
      hits.push_back(id);
    }
    choices.emplace_back(after_slash(id));
  }
  if (hits.size() == 1) {
    const auto other = aliases();
    const auto alias = other.find(hits.front());
    const std::string& config = alias == other.end() ? hits.front() : alias->second;
    return read_model_config(with_changes(embedded_json(file_of(config)), changes), hits.front());
  }
  constexpr std::string_view kAdvice =
      "give the model's own config.json with --model-config; `oomcast list models` shows the "
      "catalog";
  if (hits.size() > 1) {
    throw ConfigError(Problem{"command line", "model", std::string(name),
                              fmt::format("one of {}", fmt::join(hits, ", ")), ""});
  }
  const std::string nearest = did_you_mean(name, choices);
  throw ConfigError(
      Problem{"command line", "model", std::string(name), "a model of the catalog",
              nearest.empty() ? std::string(kAdvice) : fmt::format("{} {}", nearest, kAdvice)});
}

}  // namespace oomcast::models
