#include "models/checkpoint.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <fstream>

#include "models/weights.hpp"
#include "sim/core/error.hpp"
#include "sim/core/json.hpp"

namespace oomcast::models {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kMostBytes = std::int64_t{1} << 53;
constexpr std::int64_t kMostHeader = 100'000'000;  // the format's own limit
constexpr std::size_t kMostFiles = 4096;
// Vocabularies are padded, some vectors are stored in other types: less than this share.
constexpr double kExplained = 1e-3;
constexpr double kNotThisModel = 4.0;

Bytes read_index(const std::string& path) {
  const Json json = read_json_file(path);
  Problems problems;
  std::optional<std::int64_t> total;
  if (json.is_object()) {
    const JsonView view(json, path, "", problems);
    const auto metadata = view.object("metadata");
    total = metadata ? metadata->integer("total_size", 1, kMostBytes) : std::nullopt;
  }
  if (!total) {
    problems.add({path, "metadata.total_size", "", "the size of all tensors in bytes",
                  "the index that is published with the checkpoint has it"});
  }
  problems.raise_if_any();
  return Bytes{*total};
}

[[noreturn]] void refuse(const std::string& path, const std::string& expected) {
  throw ConfigError(Problem{path, "header", "", expected, "is the file complete?"});
}

// safetensors: 8 bytes of length, little-endian, then JSON: name -> {dtype, shape, data_offsets}.
Bytes read_header(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::array<char, 8> raw{};
  in.read(raw.data(), raw.size());
  std::int64_t length = 0;
  for (std::size_t i = raw.size(); i-- > 0;) {
    length = (length << 8) | static_cast<unsigned char>(raw[i]);
  }
  if (!in || length < 2 || length > kMostHeader) {
    refuse(path, fmt::format("a length from 2 to {} bytes", kMostHeader));
  }
  std::string text(static_cast<std::size_t>(length), '\0');
  in.read(text.data(), length);
  if (!in) {
    refuse(path, fmt::format("{} bytes of JSON", length));
  }
  const Json header = parse_json(text, path);
  Bytes sum;
  for (const auto& [name, tensor] : header.items()) {
    if (name == "__metadata__") {
      continue;
    }
    const auto offsets = tensor.is_object() ? tensor.find("data_offsets") : tensor.end();
    const bool pair = tensor.is_object() && offsets != tensor.end() && offsets->is_array() &&
                      offsets->size() == 2 && (*offsets)[0].is_number_unsigned() &&
                      (*offsets)[1].is_number_unsigned();
    const std::uint64_t begin = pair ? (*offsets)[0].get<std::uint64_t>() : 0;
    const std::uint64_t end = pair ? (*offsets)[1].get<std::uint64_t>() : 0;
    if (!pair || end < begin || end > static_cast<std::uint64_t>(kMostBytes)) {
      refuse(path, "data_offsets [begin, end] for " + name.substr(0, 80));
    }
    sum += Bytes{static_cast<std::int64_t>(end - begin)};
  }
  return sum;
}

std::vector<fs::path> tensor_files(const fs::path& folder) {
  std::vector<fs::path> files;
  std::error_code ignored;
  for (fs::directory_iterator at(folder, ignored), end; at != end && files.size() <= kMostFiles;
       at.increment(ignored)) {
    if (at->path().extension() == ".safetensors" && at->is_regular_file(ignored)) {
      files.push_back(at->path());
    }
  }
  if (files.size() > kMostFiles) {
    throw ConfigError(Problem{folder.string(), "*.safetensors", "more files",
                              fmt::format("at most {}", kMostFiles),
                              "give the index of the shards"});
  }
  std::sort(files.begin(), files.end());
  return files;
}

bool is_stored(const TensorBytes& tensor) {
  const bool engine_scale = tensor.leaf == WeightLeaf::kScales && tensor.suffix.empty();
  return tensor.leaf != WeightLeaf::kBuffers && !engine_scale && tensor.suffix != ".absorbed" &&
         tensor.suffix != "_input_scale";
}

}  // namespace

std::optional<CheckpointFiles> find_checkpoint(const std::string& config_path) {
  std::error_code ignored;
  const fs::path config(config_path);
  const bool whole_folder = config.filename() == "config.json";
  const fs::path index =
      config.parent_path() / (whole_folder ? std::string("model.safetensors.index.json")
                                           : config.stem().string() + ".safetensors.index.json");
  if (fs::is_regular_file(index, ignored)) {
    return CheckpointFiles{read_index(index.string()), index.string()};
  }
  if (!whole_folder) {
    return std::nullopt;
  }
  const std::vector<fs::path> files = tensor_files(config.parent_path());
  if (files.empty()) {
    return std::nullopt;
  }
  CheckpointFiles out;
  for (const fs::path& file : files) {
    out.tensors += read_header(file.string());
  }
  out.source = files.size() == 1
                   ? files.front().string()
                   : fmt::format("{} and {} more", files.front().string(), files.size() - 1);
  return out;
}

Bytes computed_checkpoint(const ModelSpec& spec) {
  Bytes sum;
  for (const TensorBytes& tensor : weights_on_rank(spec, {.towers = true, .draft = true}).tensors) {
    if (is_stored(tensor)) {
      sum += tensor.bytes;
    }
  }
  return sum;
}

void follow_checkpoint(const CheckpointFiles& files, ModelSpec& spec) {
  const Bytes element = bytes_of(spec.dtype, 1);
  const Bytes all = computed_checkpoint(spec);
  Bytes drafts;
  for (const LayerSpec& layer : spec.draft_layers) {
    for (const TensorSpec& tensor : layer.tensors) {
      drafts += tensor.loaded ? Bytes{0} : element * tensor.rows.front().units * spec.hidden;
    }
  }
  // Files may lack the draft, repeat embedding and head for it, or hold a tied head as well.
  ModelSpec without_draft = spec;
  without_draft.draft_layers.clear();
  const Bytes tied = spec.tie_word_embeddings ? element * spec.vocabulary * spec.hidden : Bytes{0};
  Bytes nearest;
  for (const Bytes base : {all, all + drafts, computed_checkpoint(without_draft)}) {
    for (const Bytes candidate : {base, base + tied}) {
      const auto off = [&](Bytes computed) { return std::abs((files.tensors - computed).count()); };
      nearest = nearest == Bytes{0} || off(candidate) < off(nearest) ? candidate : nearest;
    }
  }
  const double ratio =
      static_cast<double>(files.tensors.count()) / static_cast<double>(nearest.count());
  if (ratio > kNotThisModel || ratio < 1.0 / kNotThisModel) {
    throw ConfigError(
        Problem{files.source, "size of all tensors", std::to_string(files.tensors.count()),
                fmt::format("about {} bytes, as the configuration makes them", nearest.count()),
                "does the checkpoint belong to this configuration?"});
  }
  if (std::abs(ratio - 1.0) <= kExplained) {
    return;
  }
  spec.checkpoint = CheckpointSize{files.tensors, nearest};
  spec.notes.push_back(
      fmt::format("weights follow {}: {} bytes, where the configuration makes {} ({:+.2f} %)",
                  files.source, files.tensors.count(), nearest.count(), (ratio - 1.0) * 100.0));
}

}  // namespace oomcast::models
