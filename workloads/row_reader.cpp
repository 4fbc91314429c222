#include "workloads/row_reader.hpp"

#include <algorithm>
#include <charconv>

#include "sim/core/digest.hpp"

namespace oomcast::workloads {
namespace {

void add_reasons(std::map<std::string, ReadSummary::Reason>& into,
                 const std::map<std::string, ReadSummary::Reason>& from) {
  for (const auto& [reason, entry] : from) {
    ReadSummary::Reason& sum = into[reason];
    if (sum.count == 0) {
      sum.first = entry.first;
    }
    sum.count += entry.count;
  }
}

// Enough to see what is wrong with a file; reading on would only repeat it.
constexpr std::size_t kMostProblems = 10;

std::optional<std::int64_t> whole(std::string_view text) {
  std::int64_t value = 0;
  const char* last = text.data() + text.size();
  const auto [end, error] = std::from_chars(text.data(), last, value);
  if (error == std::errc{} && end == last) {
    return value;
  }
  // Exporters write 374.0; a fraction is refused.
  const auto thousandths = scaled_decimal(text, 3);
  return thousandths && *thousandths % 1000 == 0 ? std::optional(*thousandths / 1000)
                                                 : std::nullopt;
}

}  // namespace

std::optional<std::int64_t> RowChecker::tokens(int field, std::string_view name) {
  const auto text = source_->field(field);
  if (!text) {
    return std::nullopt;
  }
  const auto value = whole(*text);
  if (!value || *value < 0 || *value > kMaxTokens) {
    complain(name, std::string(*text), "a whole number of tokens from 0 to 100,000,000");
    return std::nullopt;
  }
  return value;
}

std::optional<std::int64_t> RowChecker::integer(int field, std::string_view name) {
  const auto text = source_->field(field);
  if (!text) {
    return std::nullopt;
  }
  const auto value = whole(*text);
  if (!value) {
    complain(name, std::string(*text), "a whole number");
  }
  return value;
}

std::optional<std::int64_t> RowChecker::scaled(int field, std::string_view name, int digits) {
  const auto text = source_->field(field);
  if (!text) {
    return std::nullopt;
  }
  const auto value = scaled_decimal(*text, digits);
  if (!value || *value < 0) {
    complain(name, std::string(*text), "a number of at least 0 that fits 64 bits of nanoseconds");
    return std::nullopt;
  }
  return value;
}

bool RowChecker::lengths(TraceRequest& request, std::optional<std::int64_t> input,
                         std::optional<std::int64_t> output) {
  if (!input) {
    return drop("no input length");
  }
  if (!output) {
    return drop("no output length");
  }
  if (*input == 0) {
    return drop("input 0");
  }
  if (*output == 0) {
    if (options_->zero_output == TraceOptions::ZeroOutput::kDrop) {
      return drop("output 0");
    }
    change("output 0 read as 1");
    output = 1;
  }
  request.input = Tokens{*input};
  request.output = Tokens{*output};
  return true;
}

bool RowChecker::drop(const std::string& reason) {
  // A bad number already stops the run; it is no drop.
  if (problems_.found().size() == problems_before_row_) {
    count(summary_->dropped, reason);
  }
  return false;
}

void RowChecker::change(const std::string& reason) { count(summary_->changed, reason); }

void RowChecker::count(std::map<std::string, ReadSummary::Reason>& where,
                       const std::string& reason) {
  ReadSummary::Reason& entry = where[reason];
  if (entry.count++ == 0) {
    entry.first = source_->name() + " " + source_->place();
  }
}

void RowChecker::complain(std::string_view name, std::string value, std::string expected,
                          std::string hint) {
  problems_.add({source_->name(), fmt::format("{} {}", source_->place(), name), std::move(value),
                 std::move(expected), std::move(hint)});
}

bool RowChecker::row_is_bad() {
  const bool bad = problems_.found().size() > problems_before_row_;
  problems_before_row_ = problems_.found().size();
  if (problems_.found().size() >= kMostProblems) {
    problems_.raise_if_any();
  }
  return bad;
}

void add_summary(ReadSummary& sum, const ReadSummary& part) {
  sum.read += part.read;
  sum.kept += part.kept;
  add_reasons(sum.dropped, part.dropped);
  add_reasons(sum.changed, part.changed);
  for (const std::string& note : part.notes) {
    if (std::find(sum.notes.begin(), sum.notes.end(), note) == sum.notes.end()) {
      sum.notes.push_back(note);
    }
  }
}

std::uint64_t content_id(std::uint64_t scope, std::uint64_t id) { return mix64(scope ^ mix64(id)); }

std::uint64_t text_key(std::string_view text) {
  Digest digest;
  digest.add(text);
  // 0 stands for "none".
  return digest.value() == 0 ? 1 : digest.value();
}

// Ids share their upper bits' segment, in which each has its place: so blocks that follow each
// other are one piece, and no offset comes near its limit.
void append_blocks(std::vector<ContentSegment>& content, std::uint64_t scope, const IdRun& ids,
                   std::int64_t block) {
  constexpr int kPlaceBits = 20;
  constexpr std::int64_t kPlaces = std::int64_t{1} << kPlaceBits;
  auto id = static_cast<std::uint64_t>(ids.first);
  for (std::int64_t left = ids.count; left > 0;) {
    const std::int64_t place = static_cast<std::int64_t>(id) & (kPlaces - 1);
    const std::int64_t count = std::min(left, kPlaces - place);
    content.push_back({content_id(scope, id >> kPlaceBits), Tokens{count * block}, place * block});
    id += static_cast<std::uint64_t>(count);
    left -= count;
  }
}

bool content_of_blocks(const IdLists& lists, std::size_t list, std::int64_t input,
                       std::int64_t block, bool last_is_partial, std::uint64_t scope,
                       std::uint64_t unique_id, std::vector<ContentSegment>& content) {
  const IdLists::List& ids = lists[list];
  if (ids.ids != (last_is_partial ? div_ceil(input, block) : input / block)) {
    return false;
  }
  for (std::size_t run = ids.begin; run < ids.end; ++run) {
    append_blocks(content, scope, lists.run(run), block);
  }
  const std::int64_t rest = input - ids.ids * block;
  if (rest > 0) {
    content.push_back({unique_id, Tokens{rest}});
  } else if (rest < 0) {
    content.back().length += Tokens{rest};
  }
  return true;
}

}  // namespace oomcast::workloads
