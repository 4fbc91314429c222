#include "workloads/flat_reader.hpp"

#include <algorithm>
#include <chrono>

namespace oomcast::workloads {
namespace {

int digits_of(TimeUnit unit) {
  switch (unit) {
    case TimeUnit::kSeconds:
      return 9;
    case TimeUnit::kMillis:
      return 6;
    case TimeUnit::kMicros:
      return 3;
    case TimeUnit::kNanos:
    case TimeUnit::kDateTime:
      return 0;
  }
  return 0;
}

class FlatReader : public SeekableRowReader {
 public:
  FlatReader(std::unique_ptr<LineReader> lines, const FlatFormat& format,
             const TraceOptions& options)
      : format_(format),
        source_(format.is_json ? open_json_lines(std::move(lines)) : open_csv(std::move(lines))),
        options_(options),
        checker_(*source_, options_, summary_) {
    summary_.format = format_.name;
    const auto want = [this](const std::string& name) {
      return name.empty() ? -1 : source_->want(name);
    };
    arrival_ = want(format_.arrival);
    input_ = want(format_.input);
    output_ = want(format_.output);
    id_ = want(format_.id);
    session_ = want(format_.session);
    parent_ = want(format_.parent);
    turn_ = want(format_.turn);
    think_ = want(format_.think);
    patience_ = want(format_.patience);
    priority_ = want(format_.priority);
    adapter_ = want(format_.adapter);
    success_ = want(format_.success);
    blocks_ = format_.blocks.empty() ? -1 : source_->want_list(format_.blocks);
    scope_ = text_key(format_.name);
    if (blocks_ >= 0) {
      summary_.notes.push_back(fmt::format("block size {}", format_.block_size));
    }
  }

  bool next(Row& row) override {
    while (source_->next()) {
      ++summary_.read;
      const bool good = read_row(row);
      if (!checker_.row_is_bad() && good) {
        ++summary_.kept;
        return true;
      }
    }
    checker_.finish();
    return false;
  }

  [[nodiscard]] ReadSummary summary() const override {
    ReadSummary summary = summary_;
    if (source_->repeated_headers() > 0) {
      summary.notes.emplace_back("repeated header lines were passed over");
    }
    return summary;
  }
  [[nodiscard]] std::int64_t line() const override { return source_->line(); }
  void skip_to(std::int64_t line) override { source_->skip_to(line); }

  [[nodiscard]] std::string arrival_text() const override {
    return std::string(field(arrival_).value_or(""));
  }

 private:
  [[nodiscard]] std::optional<std::string_view> field(int wanted) const {
    return wanted < 0 ? std::nullopt : source_->field(wanted);
  }

  bool read_row(Row& row);
  bool read_arrival(Row& row);
  bool read_content(TraceRequest& request);
  void read_labels(TraceRequest& request);

  FlatFormat format_;
  std::unique_ptr<RecordSource> source_;
  TraceOptions options_;
  ReadSummary summary_;
  RowChecker checker_;
  std::uint64_t scope_ = 0;
  std::optional<bool> has_times_;  // as the first row says
  int arrival_ = -1;
  int input_ = -1;
  int output_ = -1;
  int id_ = -1;
  int session_ = -1;
  int parent_ = -1;
  int turn_ = -1;
  int think_ = -1;
  int patience_ = -1;
  int priority_ = -1;
  int adapter_ = -1;
  int success_ = -1;
  int blocks_ = -1;
};

bool FlatReader::read_arrival(Row& row) {
  const auto text = field(arrival_);
  row.has_arrival = text.has_value();
  if (has_times_.value_or(row.has_arrival) != row.has_arrival) {
    checker_.complain(format_.arrival, text ? std::string(*text) : "nothing",
                      "a time in every row, or in none");
    return false;
  }
  has_times_ = row.has_arrival;
  if (!text) {
    return true;
  }
  std::optional<std::int64_t> time;
  if (format_.arrival_unit == TimeUnit::kDateTime) {
    time = parse_date_time(*text);
    if (!time) {
      checker_.complain(format_.arrival, std::string(*text),
                        "a date and time such as 2023-11-16 18:15:46.6805900");
    }
  } else {
    time = checker_.scaled(arrival_, format_.arrival, digits_of(format_.arrival_unit));
  }
  row.arrival_ns = time.value_or(0);
  return time.has_value();
}

bool FlatReader::read_content(TraceRequest& request) {
  request.content.clear();
  request.output_continues_content = false;
  // Another adapter makes other keys and values of the same text.
  const std::uint64_t scope =
      request.adapter.empty() ? scope_ : content_id(scope_, text_key(request.adapter));
  if (format_.session_is_content && request.session != 0) {
    request.content.push_back({content_id(scope, request.session), request.input});
    request.output_continues_content = true;
    return true;
  }
  const IdLists* ids = blocks_ < 0 ? nullptr : source_->list(blocks_);
  if (ids == nullptr) {
    return true;
  }
  const auto row_number = static_cast<std::uint64_t>(source_->line());
  if (!content_of_blocks(*ids, 0, request.input.count(), format_.block_size,
                         format_.last_block_is_partial, scope, content_id(scope_ + 1, row_number),
                         request.content)) {
    checker_.complain(
        format_.blocks, fmt::format("{} ids for {} tokens", (*ids)[0].ids, request.input.count()),
        fmt::format("one id for every {} tokens", format_.block_size),
        fmt::format("another block size is given as --trace-format {}:block=N", format_.name));
    return false;
  }
  return true;
}

void FlatReader::read_labels(TraceRequest& request) {
  const auto text = [this](int wanted) { return field(wanted).value_or(std::string_view{}); };
  const auto read_text = [&text](int wanted, std::string& into) {
    if (wanted < 0) {
      into.clear();
    } else {
      into = text(wanted);
    }
  };
  read_text(id_, request.id);
  read_text(parent_, request.parent_id);
  if (request.parent_id == "-1") {
    request.parent_id.clear();
  }
  const std::string_view session = text(session_);
  request.session = session.empty() ? 0 : text_key(session);
  read_text(adapter_, request.adapter);
  request.turn = 0;
  if (turn_ >= 0) {
    const std::int64_t turn = checker_.integer(turn_, format_.turn).value_or(0);
    const bool fits = turn >= 0 && turn <= INT32_MAX;
    request.turn =
        fits ? static_cast<std::int32_t>(format_.turn_counts_messages ? (turn + 1) / 2 : turn) : 0;
  }
  request.priority = priority_ < 0 ? 0 : checker_.integer(priority_, format_.priority).value_or(0);
  request.patience.reset();
  if (field(patience_)) {
    const auto wait = checker_.scaled(patience_, format_.patience, digits_of(TimeUnit::kSeconds));
    request.patience = Nanos{std::max<std::int64_t>(wait.value_or(0), 0)};
  }
  request.think = Nanos{};
  if (think_ >= 0) {
    request.think =
        Nanos{checker_.scaled(think_, format_.think, digits_of(format_.think_unit)).value_or(0)};
  }
}

bool FlatReader::read_row(Row& row) {
  if (success_ >= 0) {
    const auto success = field(success_);
    if (success && *success != "True" && *success != "true" && *success != "1") {
      return checker_.drop("the request failed");
    }
  }
  const auto input = checker_.tokens(input_, format_.input);
  const auto output = output_ < 0 ? std::optional<std::int64_t>(1)  // drawn later
                                  : checker_.tokens(output_, format_.output);
  if (!checker_.lengths(row.request, input, output) || !read_arrival(row)) {
    return false;
  }
  read_labels(row.request);
  return read_content(row.request);
}

}  // namespace

std::unique_ptr<SeekableRowReader> open_flat(std::unique_ptr<LineReader> lines,
                                             const FlatFormat& format,
                                             const TraceOptions& options) {
  return std::make_unique<FlatReader>(std::move(lines), format, options);
}

std::optional<std::int64_t> parse_date_time(std::string_view text) {
  const auto number = [&text](std::size_t at, std::size_t length) {
    int value = 0;
    for (std::size_t i = at; i < at + length; ++i) {
      if (text[i] < '0' || text[i] > '9') {
        return -1;
      }
      value = value * 10 + (text[i] - '0');
    }
    return value;
  };
  constexpr std::size_t kWithoutFraction = 19;
  if (text.size() < kWithoutFraction || text[4] != '-' || text[7] != '-' ||
      (text[10] != ' ' && text[10] != 'T') || text[13] != ':' || text[16] != ':') {
    return std::nullopt;
  }
  const int hour = number(11, 2);
  const int minute = number(14, 2);
  const int second = number(17, 2);
  const int year = number(0, 4);
  const int month = number(5, 2);
  const int day = number(8, 2);
  const std::chrono::year_month_day date{
      std::chrono::year{year}, std::chrono::month{static_cast<unsigned>(std::max(month, 0))},
      std::chrono::day{static_cast<unsigned>(std::max(day, 0))}};
  // 64 bits of nanoseconds end in 2262; a leap second is read as the next second.
  if (year < 1970 || year > 2261 || !date.ok() || hour < 0 || hour > 23 || minute < 0 ||
      minute > 59 || second < 0 || second > 60) {
    return std::nullopt;
  }
  std::int64_t nanos =
      ((std::chrono::sys_days{date}.time_since_epoch().count() * std::int64_t{24} + hour) * 60 +
       minute) *
          60 +
      second;
  nanos *= 1'000'000'000;
  std::size_t at = kWithoutFraction;
  if (at < text.size() && text[at] == '.') {
    std::int64_t unit = 100'000'000;
    std::size_t digits = 0;
    for (++at; at < text.size() && text[at] >= '0' && text[at] <= '9'; ++at, ++digits) {
      nanos += unit * (text[at] - '0');
      unit /= 10;
    }
    if (digits == 0 || digits > 9) {
      return std::nullopt;
    }
  }
  const std::string_view zone = text.substr(at);
  if (zone.empty() || zone == "Z") {
    return nanos;
  }
  // +HH:MM
  if (zone.size() != 6 || (zone[0] != '+' && zone[0] != '-') || zone[3] != ':') {
    return std::nullopt;
  }
  const int zone_hours = number(at + 1, 2);
  const int zone_minutes = number(at + 4, 2);
  if (zone_hours < 0 || zone_hours > 14 || zone_minutes < 0 || zone_minutes > 59) {
    return std::nullopt;
  }
  const std::int64_t shift = (zone_hours * 60 + zone_minutes) * std::int64_t{60'000'000'000};
  return zone[0] == '+' ? nanos - shift : nanos + shift;
}

}  // namespace oomcast::workloads
