#include "models/data.hpp"

#include <filesystem>
#include <mutex>
#include <set>

namespace oomcast::models {
namespace {

constexpr std::size_t kMostDataFiles = 4096;
constexpr std::size_t kMostDataBytes = std::size_t{256} << 20;

struct DataFolder {
  std::string path;
  std::map<std::string, std::string, std::less<>> files;
};

DataFolder& data_folder() {
  static DataFolder folder;
  return folder;
}

struct ParsedFiles {
  std::mutex mutex;
  std::map<std::string, Json, std::less<>> files;
};

ParsedFiles& parsed_files() {
  static ParsedFiles parsed;
  return parsed;
}

// Where the text of `name` came from, for messages.
std::string source_of(std::string_view name) {
  const DataFolder& folder = data_folder();
  return folder.files.contains(name) ? folder.path + "/" + std::string(name) : std::string(name);
}

}  // namespace

void set_data_folder(const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code error;
  if (!fs::is_directory(path, error)) {
    throw ConfigError(Problem{path, "", "", "a folder laid out like models/", ""});
  }
  DataFolder folder{path, {}};
  std::size_t total = 0;
  for (auto at = fs::recursive_directory_iterator(path, error); !error && at != fs::end(at);
       at.increment(error)) {
    std::error_code ignored;
    if (at->path().extension() != ".json" || !at->is_regular_file(ignored)) {
      continue;
    }
    std::string text = read_text_file(at->path().string());
    total += text.size();
    if (folder.files.size() >= kMostDataFiles || total > kMostDataBytes) {
      throw ConfigError(Problem{path, "", "more", "a data folder of at most 4096 files, 256 MiB",
                                "give the folder that holds catalog/, gpus/ or engines/"});
    }
    folder.files.emplace(fs::relative(at->path(), path, ignored).generic_string(), std::move(text));
  }
  if (error) {
    throw ConfigError(Problem{path, "", error.message(), "a readable folder", ""});
  }
  data_folder() = std::move(folder);
  ParsedFiles& parsed = parsed_files();
  const std::lock_guard lock(parsed.mutex);
  parsed.files.clear();
}

std::string_view embedded_file(std::string_view name) {
  const DataFolder& folder = data_folder();
  if (const auto own = folder.files.find(name); own != folder.files.end()) {
    return own->second;
  }
  const auto& compiled = detail::compiled_in_files();
  if (const auto at = compiled.find(name); at != compiled.end()) {
    return at->second;
  }
  throw ConfigError(Problem{"data files", std::string(name), "", "a file that exists",
                            did_you_mean(name, embedded_names())});
}

const Json& embedded_json(std::string_view name) {
  ParsedFiles& parsed = parsed_files();
  const std::lock_guard lock(parsed.mutex);
  auto at = parsed.files.find(name);
  if (at == parsed.files.end()) {
    at = parsed.files.emplace(name, parse_json(embedded_file(name), source_of(name))).first;
  }
  return at->second;
}

std::vector<std::string> embedded_names(std::string_view prefix) {
  std::set<std::string> names;
  for (const auto& [name, text] : detail::compiled_in_files()) {
    names.emplace(name);
  }
  for (const auto& [name, text] : data_folder().files) {
    names.insert(name);
  }
  std::erase_if(names, [prefix](const std::string& name) { return !name.starts_with(prefix); });
  return {names.begin(), names.end()};
}

}  // namespace oomcast::models
