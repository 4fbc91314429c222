#include "sim/run/request_log.hpp"

#include "sim/core/error.hpp"

namespace oomcast {

std::string_view name_of(RequestOutcome outcome) {
  switch (outcome) {
    case RequestOutcome::kFinished:
      return "finished";
    case RequestOutcome::kRejectedEmptyPrompt:
      return "rejected_empty_prompt";
    case RequestOutcome::kRejectedTooLong:
      return "rejected_too_long";
    case RequestOutcome::kRejectedNoOutput:
      return "rejected_no_output";
    case RequestOutcome::kRejectedQueueFull:
      return "rejected_queue_full";
    case RequestOutcome::kAborted:
      return "aborted";
    case RequestOutcome::kFailed:
      return "failed";
    case RequestOutcome::kNotAdmitted:
      return "not_admitted";
    case RequestOutcome::kInterrupted:
      return "interrupted";
  }
  return "";
}

RequestRow& RequestLog::open(std::int64_t index) {
  OOMCAST_CHECK(index == first_ + static_cast<std::int64_t>(entries_.size()),
                "request {} opened after {}", index, first_ + std::ssize(entries_));
  entries_.emplace_back();
  entries_.back().row.index = index;
  return entries_.back().row;
}

RequestRow& RequestLog::at(std::int64_t index) {
  const std::int64_t offset = index - first_;
  OOMCAST_CHECK(offset >= 0 && offset < std::ssize(entries_), "request {} is not open", index);
  return entries_[static_cast<std::size_t>(offset)].row;
}

void RequestLog::close(std::int64_t index) {
  OOMCAST_CHECK(index >= first_ && index - first_ < std::ssize(entries_), "request {} is not open",
                index);
  entries_[static_cast<std::size_t>(index - first_)].closed = true;
  while (!entries_.empty() && entries_.front().closed) {
    hand_on();
  }
}

void RequestLog::close_all() {
  while (!entries_.empty()) {
    hand_on();
  }
}

void RequestLog::hand_on() {
  const RequestRow& row = entries_.front().row;
  if (row.warm_up) {
    entries_.pop_front();
    ++first_;
    return;
  }
  ++totals_->requests;
  const auto nanos = [](SimTime at) { return at.since_start().count(); };
  switch (row.outcome) {
    case RequestOutcome::kFinished: {
      ++totals_->finished;
      totals_->prompt_tokens += row.input;
      totals_->output_tokens += row.output;
      totals_->cached_tokens += row.cached;
      totals_->ttft.add(nanos(row.first_token) - nanos(row.arrival));
      totals_->latency.add(nanos(row.finish) - nanos(row.arrival));
      if (row.output > Tokens{1}) {
        totals_->tpot.add((nanos(row.finish) - nanos(row.first_token)) / (row.output.count() - 1));
      }
      break;
    }
    case RequestOutcome::kNotAdmitted:
    case RequestOutcome::kInterrupted:
    case RequestOutcome::kFailed:
      ++totals_->unfinished;
      break;
    case RequestOutcome::kAborted:
      ++totals_->aborted;
      break;
    default:
      ++totals_->rejected;
  }
  for (const std::int64_t word :
       {row.index, nanos(row.arrival), nanos(row.first_scheduled), nanos(row.first_token),
        nanos(row.finish), row.input.count(), row.output.count(), row.cached.count(),
        row.preemptions, static_cast<std::int64_t>(row.outcome)}) {
    digest_->add_word(static_cast<std::uint64_t>(word));
  }
  sink_->row(row);
  entries_.pop_front();
  ++first_;
}

}  // namespace oomcast
