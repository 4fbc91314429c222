#include "sim/kv/token_runs.hpp"

#include <algorithm>

#include "sim/core/digest.hpp"

namespace oomcast::kv {
namespace {

std::uint64_t mix_run(std::uint64_t hash, const TokenRun& run) {
  hash = mix64(mix64(hash ^ run.segment) + static_cast<std::uint64_t>(run.offset));
  return mix64(hash + static_cast<std::uint64_t>(run.length));
}

}  // namespace

void TokenRuns::clear() {
  runs_.clear();
  starts_.clear();
  length_ = 0;
}

void TokenRuns::append(TokenRun run) {
  if (run.length <= 0) {
    return;
  }
  if (!runs_.empty() && runs_.back().continues(run)) {
    runs_.back().length += run.length;
  } else {
    runs_.push_back(run);
    starts_.push_back(length_);
  }
  length_ += run.length;
}

TokenRuns::Place TokenRuns::place(std::int64_t position) const {
  if (position == length_) {
    return {runs_.size(), 0};
  }
  const auto after = std::upper_bound(starts_.begin(), starts_.end(), position);
  const auto run = static_cast<std::size_t>(after - starts_.begin()) - 1;
  return {run, position - starts_[run]};
}

void TokenRuns::advance(Place& place, std::int64_t count) const {
  place.skip += count;
  while (place.run < runs_.size() && place.skip >= runs_[place.run].length) {
    place.skip -= runs_[place.run].length;
    ++place.run;
  }
}

std::int64_t TokenRuns::common(const TokenSpan& span, Place place, std::int64_t limit) const {
  std::int64_t matched = 0;
  std::int64_t skip = 0;  // of the span's current run
  for (std::size_t i = 0; i < span.size() && matched < limit && place.run < runs_.size();) {
    const TokenRun& ours = runs_[place.run];
    if (ours.segment != span[i].segment || ours.offset + place.skip != span[i].offset + skip) {
      break;
    }
    const std::int64_t count =
        std::min({ours.length - place.skip, span[i].length - skip, limit - matched});
    matched += count;
    skip += count;
    advance(place, count);
    if (skip == span[i].length) {
      ++i;
      skip = 0;
    }
  }
  return matched;
}

void TokenRuns::copy(Place place, std::int64_t count, TokenSpan& out) const {
  out.clear();
  while (count > 0) {
    const TokenRun& run = runs_[place.run];
    const std::int64_t part = std::min(run.length - place.skip, count);
    out.push_back({run.segment, run.offset + place.skip, part});
    count -= part;
    advance(place, part);
  }
}

std::uint64_t TokenRuns::hash(Place place, std::int64_t count) const {
  std::uint64_t hash = 0;
  while (count > 0) {
    const TokenRun& run = runs_[place.run];
    const std::int64_t part = std::min(run.length - place.skip, count);
    hash = mix_run(hash, {run.segment, run.offset + place.skip, part});
    count -= part;
    advance(place, part);
  }
  return hash;
}

std::uint64_t hash_front(const TokenSpan& span, std::int64_t count) {
  std::uint64_t hash = 0;
  for (std::size_t i = 0; count > 0; ++i) {
    const std::int64_t part = std::min(span[i].length, count);
    hash = mix_run(hash, {span[i].segment, span[i].offset, part});
    count -= part;
  }
  return hash;
}

TokenSpan cut_front(TokenSpan& span, std::int64_t count) {
  TokenSpan front;
  std::size_t used = 0;
  for (; count > 0; ++used) {
    TokenRun& run = span[used];
    const std::int64_t part = std::min(run.length, count);
    front.push_back({run.segment, run.offset, part});
    count -= part;
    if (part < run.length) {
      run.offset += part;
      run.length -= part;
      break;
    }
  }
  span.erase(span.begin(), span.begin() + static_cast<std::ptrdiff_t>(used));
  return front;
}

}  // namespace oomcast::kv
