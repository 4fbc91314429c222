#include "sim/allocator/settings.hpp"

#include <algorithm>
#include <bit>
#include <cctype>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <limits>

namespace oomcast::allocator {
namespace {

constexpr std::int64_t kSmallestLargeSegmentMb = 10;
constexpr std::uint64_t kMaxMb = std::numeric_limits<std::int64_t>::max() >> 20;
constexpr std::uint64_t kMaxRegisterThreads = 128;

// Words and the separators `,:[]`, white space dropped anywhere, also inside words.
std::vector<std::string> tokenize(std::string_view text) {
  std::vector<std::string> tokens;
  std::string word;
  const auto flush = [&] {
    if (!word.empty()) {
      tokens.push_back(std::move(word));
      word.clear();
    }
  };
  for (const char letter : text) {
    if (letter == ',' || letter == ':' || letter == '[' || letter == ']') {
      flush();
      tokens.emplace_back(1, letter);
    } else if (std::isspace(static_cast<unsigned char>(letter)) == 0) {
      word += letter;
    }
  }
  flush();
  return tokens;
}

// std::stoull as PyTorch calls it: the longest number at the front counts, the rest is ignored, a
// minus sign wraps around.
std::optional<std::uint64_t> leading_integer(const std::string& token) {
  errno = 0;
  char* end = nullptr;
  const std::uint64_t value = std::strtoull(token.c_str(), &end, 10);
  if (end == token.c_str() || errno == ERANGE) {
    return std::nullopt;
  }
  return value;
}

// std::stod likewise.
std::optional<double> leading_number(const std::string& token) {
  errno = 0;
  char* end = nullptr;
  const double value = std::strtod(token.c_str(), &end);
  if (end == token.c_str() || errno == ERANGE) {
    return std::nullopt;
  }
  return value;
}

// Divisions so many that no request reaches them do the same as any such number; kept small, sizes
// times divisions cannot overflow.
std::int64_t kept_divisions(std::uint64_t divisions) {
  return static_cast<std::int64_t>(std::min(divisions, std::uint64_t{1} << 52));
}

// Walks the tokens as PyTorch's parsers do: separators are stepped over unread, which decides what
// a text with wrong ones means. A text that ends too early ends the walk.
class ConfReader {
 public:
  ConfReader(std::string_view text, std::string_view source, AllocatorSettings& settings,
             Problems& problems, std::vector<std::string>& warnings)
      : tokens_(tokenize(text)),
        source_(source),
        settings_(settings),
        problems_(problems),
        warnings_(warnings) {}

  void read();

 private:
  using Handler = void (ConfReader::*)();
  struct Option {
    std::string_view name;
    Handler read;
    bool warns_with_async;  // PyTorch's "native specific option"
  };
  static const std::vector<Option>& options();

  void read_large_segment_size();
  void read_pair();

  void max_split_size();
  void max_non_split_rounding();
  void garbage_collection_threshold();
  void roundup_divisions();
  void roundup_list();
  void expandable_segments() { boolean(settings_.expandable_segments); }
  void throw_on_cudamalloc_oom() { boolean(settings_.throw_on_cudamalloc_oom); }
  void record_stream_reuse() { boolean(settings_.graph_capture_record_stream_reuse); }
  void release_lock() { boolean(settings_.release_lock_on_cudamalloc); }
  void host_register() { boolean(settings_.pinned_use_cuda_host_register); }
  void unused_boolean() {
    bool unused = false;
    boolean(unused);
  }
  void skipped() { value(); }
  void register_threads();
  void reserve_segment_size();
  void memory_fraction();
  void backend();
  void segments_reserve();
  void segments_reserve_by_class();

  // The token after the one that should be a separator; nullptr at the end, with a complaint.
  const std::string* value();
  void boolean(bool& target);
  std::optional<std::uint64_t> integer(const char* expected);
  std::optional<Bytes> split_size();
  std::optional<SegmentReserve> reserve(const std::string& token);
  void complain(std::string found, std::string expected, std::string hint = {});

  std::vector<std::string> tokens_;
  std::string source_;
  AllocatorSettings& settings_;
  Problems& problems_;
  std::vector<std::string>& warnings_;
  std::size_t at_ = 0;
  std::string key_;
};

const std::vector<ConfReader::Option>& ConfReader::options() {
  static const std::vector<Option> table = {
      {"backend", &ConfReader::backend, false},
      {"large_segment_size_mb", &ConfReader::skipped, false},  // read before all others
      {"max_split_size_mb", &ConfReader::max_split_size, false},
      {"max_non_split_rounding_mb", &ConfReader::max_non_split_rounding, false},
      {"garbage_collection_threshold", &ConfReader::garbage_collection_threshold, false},
      {"roundup_power2_divisions", &ConfReader::roundup_divisions, false},
      {"expandable_segments", &ConfReader::expandable_segments, false},
      {"pinned_use_background_threads", &ConfReader::unused_boolean, false},
      {"release_lock_on_cudamalloc", &ConfReader::release_lock, true},
      {"release_lock_on_hipmalloc", &ConfReader::release_lock, true},
      {"pinned_use_cuda_host_register", &ConfReader::host_register, true},
      {"pinned_use_hip_host_register", &ConfReader::host_register, true},
      {"pinned_num_register_threads", &ConfReader::register_threads, true},
      {"pinned_reserve_segment_size_mb", &ConfReader::reserve_segment_size, true},
      {"pinned_free_catch_all", &ConfReader::unused_boolean, true},
      {"graph_capture_record_stream_reuse", &ConfReader::record_stream_reuse, true},
      {"per_process_memory_fraction", &ConfReader::memory_fraction, true},
      {"throw_on_cudamalloc_oom", &ConfReader::throw_on_cudamalloc_oom, true},
      {"expandable_segments_reserve", &ConfReader::segments_reserve, true},
      {"expandable_segments_reserve_by_class", &ConfReader::segments_reserve_by_class, true}};
  return table;
}

void ConfReader::read() {
  settings_.max_split_size.reset();
  settings_.roundup_power2_divisions.fill(0);
  settings_.garbage_collection_threshold = 0;
  read_large_segment_size();
  settings_.max_non_split_rounding = settings_.large_segment_size;
  bool native_option = false;
  while (at_ < tokens_.size()) {
    key_ = tokens_[at_];
    const auto option =
        std::find_if(options().begin(), options().end(),
                     [&](const Option& candidate) { return candidate.name == key_; });
    if (option == options().end()) {
      std::vector<std::string> names;
      for (const Option& known : options()) {
        names.emplace_back(known.name);
      }
      problems_.add(
          {source_, "", key_, "an option of PyTorch's CUDA allocator", did_you_mean(key_, names)});
      // What follows has no meaning PyTorch would give it, up to the next option.
      while (at_ < tokens_.size() && tokens_[at_] != ",") {
        ++at_;
      }
      ++at_;
      continue;
    }
    native_option = native_option || option->warns_with_async;
    (this->*option->read)();
    at_ += 2;  // past the value and an unread comma
  }
  if (settings_.backend == Backend::kCudaMallocAsync && native_option) {
    warnings_.emplace_back(
        "backend:cudaMallocAsync ignores max_split_size_mb,roundup_power2_divisions, and "
        "garbage_collect_threshold.");
  }
}

void ConfReader::read_large_segment_size() {
  for (at_ = 0; at_ < tokens_.size(); ++at_) {
    if (tokens_[at_] != "large_segment_size_mb") {
      continue;
    }
    key_ = tokens_[at_];
    const std::optional<std::uint64_t> mb = integer("a number of MB above 10");
    if (!mb) {
      continue;
    }
    if (*mb <= kSmallestLargeSegmentMb) {
      complain(tokens_[at_], fmt::format("more than {} MB", kSmallestLargeSegmentMb));
    } else {
      settings_.large_segment_size = Bytes{std::min(*mb, kMaxMb)} * kMiB.count();
    }
  }
  at_ = 0;
}

const std::string* ConfReader::value() {
  at_ += 2;
  if (at_ >= tokens_.size()) {
    problems_.add({source_, key_, "nothing", "a value", "write it as key:value"});
    return nullptr;
  }
  return &tokens_[at_];
}

void ConfReader::complain(std::string found, std::string expected, std::string hint) {
  problems_.add({source_, key_, std::move(found), std::move(expected), std::move(hint)});
}

void ConfReader::boolean(bool& target) {
  const std::string* token = value();
  if (token == nullptr) {
    return;
  }
  if (*token == "True" || *token == "False") {
    target = *token == "True";
  } else {
    complain(*token, "True or False");
  }
}

std::optional<std::uint64_t> ConfReader::integer(const char* expected) {
  const std::string* token = value();
  if (token == nullptr) {
    return std::nullopt;
  }
  const std::optional<std::uint64_t> number = leading_integer(*token);
  if (!number) {
    complain(*token, expected);
  }
  return number;
}

std::optional<Bytes> ConfReader::split_size() {
  const std::optional<std::uint64_t> mb = integer("a number of MB");
  if (!mb) {
    return std::nullopt;
  }
  const std::int64_t lowest = settings_.large_segment_size / kMiB;
  if (*mb < static_cast<std::uint64_t>(lowest)) {
    complain(tokens_[at_], fmt::format("at least {} MB, the large segment size", lowest));
    return std::nullopt;
  }
  return Bytes{std::min(*mb, kMaxMb)} * kMiB.count();
}

void ConfReader::max_split_size() {
  if (const std::optional<Bytes> size = split_size()) {
    settings_.max_split_size = size;
  }
}

void ConfReader::max_non_split_rounding() {
  if (const std::optional<Bytes> size = split_size()) {
    settings_.max_non_split_rounding = *size;
  }
}

void ConfReader::garbage_collection_threshold() {
  const std::string* token = value();
  if (token == nullptr) {
    return;
  }
  const std::optional<double> threshold = leading_number(*token);
  if (threshold && *threshold > 0 && *threshold < 1) {
    settings_.garbage_collection_threshold = *threshold;
  } else {
    complain(*token, "a number above 0 and below 1");
  }
}

void ConfReader::roundup_divisions() {
  const std::string* token = value();
  if (token == nullptr) {
    return;
  }
  if (*token == "[") {
    roundup_list();
    return;
  }
  const std::optional<std::uint64_t> divisions = leading_integer(*token);
  if (divisions && std::has_single_bit(*divisions)) {
    settings_.roundup_power2_divisions.fill(kept_divisions(*divisions));
  } else {
    complain(*token, "a power of 2, or a list [MB:divisions,...,>:divisions]");
  }
}

// Below the first key its value holds; gaps between keys stay off; `>` fills what lies above the
// key before it (from the start where there is none).
void ConfReader::roundup_list() {
  auto& table = settings_.roundup_power2_divisions;
  std::size_t last = 0;
  bool first = true;
  for (++at_; at_ < tokens_.size() && tokens_[at_] != "]"; ++at_) {
    const std::string interval = tokens_[at_];
    const std::optional<std::uint64_t> divisions = integer("a number of divisions");
    if (at_ >= tokens_.size()) {
      return;
    }
    const bool valid = divisions && (*divisions == 0 || std::has_single_bit(*divisions));
    if (divisions && !valid) {
      complain(tokens_[at_], "a power of 2, or 0 for none");
    }
    const std::optional<std::uint64_t> boundary = leading_integer(interval);
    if (interval == ">") {
      if (valid) {
        std::fill(table.begin() + static_cast<std::ptrdiff_t>(last) + 1, table.end(),
                  kept_divisions(*divisions));
      }
    } else if (!boundary || !std::has_single_bit(*boundary)) {
      complain(interval, "a power of 2 in MB, or >");
    } else if (valid) {
      const auto index = std::min<std::size_t>(
          static_cast<std::size_t>(std::bit_width(*boundary) - 1), table.size() - 1);
      if (first) {
        std::fill(table.begin(), table.begin() + static_cast<std::ptrdiff_t>(index),
                  kept_divisions(*divisions));
        first = false;
      }
      table[index] = kept_divisions(*divisions);
      last = index;
    }
    if (at_ + 1 < tokens_.size() && tokens_[at_ + 1] != "]") {
      ++at_;
    }
  }
  if (at_ >= tokens_.size()) {
    complain("nothing", "a closing ]");
  }
}

void ConfReader::register_threads() {
  const std::optional<std::uint64_t> threads = integer("a number of threads");
  if (threads && (!std::has_single_bit(*threads) || *threads > kMaxRegisterThreads)) {
    complain(tokens_[at_], fmt::format("a power of 2 up to {}", kMaxRegisterThreads));
  } else if (threads) {
    settings_.pinned_num_register_threads = static_cast<std::int64_t>(*threads);
  }
}

void ConfReader::reserve_segment_size() {
  const std::optional<std::uint64_t> mb = integer("a number of MB");
  if (mb && *mb == 0) {
    complain(tokens_[at_], "more than 0 MB");
  }
}

void ConfReader::memory_fraction() {
  const std::string* token = value();
  if (token == nullptr) {
    return;
  }
  const std::optional<double> fraction = leading_number(*token);
  if (fraction && *fraction >= 0 && *fraction <= 1) {
    settings_.per_process_memory_fraction = *fraction;
  } else {
    complain(*token, "a number from 0 to 1");
  }
}

void ConfReader::backend() {
  const std::string* token = value();
  if (token == nullptr) {
    return;
  }
  if (*token == "native" || *token == "cudaMallocAsync") {
    settings_.backend = *token == "native" ? Backend::kNative : Backend::kCudaMallocAsync;
  } else {
    complain(*token, "native or cudaMallocAsync",
             did_you_mean(*token, {"native", "cudaMallocAsync"}));
  }
}

// "0.5": of the device's total; "40G": GiB. PyTorch only warns of a wrong one.
std::optional<SegmentReserve> ConfReader::reserve(const std::string& token) {
  SegmentReserve parsed;
  parsed.is_fraction = token.back() != 'G' && token.back() != 'g';
  const std::string number = parsed.is_fraction ? token : token.substr(0, token.size() - 1);
  char* end = nullptr;
  parsed.value = std::strtod(number.c_str(), &end);
  if (number.empty() || *end != '\0' || !std::isfinite(parsed.value) || parsed.value <= 0) {
    warnings_.push_back(fmt::format(
        "Ignoring invalid expandable-segment reserve value '{}' in {} (expected a positive, finite "
        "fraction like 0.5 or an absolute size like 40G); using default.",
        token, source_));
    return std::nullopt;
  }
  return parsed;
}

void ConfReader::segments_reserve() {
  const std::string* token = value();
  if (token == nullptr) {
    return;
  }
  if (const std::optional<SegmentReserve> parsed = reserve(*token)) {
    settings_.expandable_segments_reserve = parsed;
  }
}

// Classes are given to streams by code that calls PyTorch's C++ interface; no serving engine does,
// so the values are checked and not kept.
void ConfReader::segments_reserve_by_class() {
  ++at_;  // to the colon; "[" follows
  for (at_ += 2; at_ < tokens_.size() && tokens_[at_] != "]"; ++at_) {
    const std::string* token = value();
    if (token == nullptr) {
      return;
    }
    reserve(*token);
    if (at_ + 1 < tokens_.size() && tokens_[at_ + 1] == ",") {
      ++at_;
    }
  }
  if (at_ >= tokens_.size()) {
    complain("nothing", "a list [class:value,...]");
  }
}

}  // namespace

void apply_allocator_conf(std::string_view text, std::string_view source,
                          AllocatorSettings& settings, Problems& problems,
                          std::vector<std::string>& warnings) {
  ConfReader(text, source, settings, problems, warnings).read();
  settings.text = text;
}

AllocatorSettings parse_allocator_settings(std::string_view text, std::string_view source,
                                           Problems& problems, std::vector<std::string>& warnings) {
  AllocatorSettings settings;
  apply_allocator_conf(text, source, settings, problems, warnings);
  return settings;
}

}  // namespace oomcast::allocator
