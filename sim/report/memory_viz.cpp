#include "sim/report/memory_viz.hpp"

#include <bit>
#include <limits>

#include "sim/core/error.hpp"

namespace oomcast {
namespace {

// Pickle opcodes.
constexpr char kMark = '(';
constexpr char kStop = '.';
constexpr char kTuple2 = '\x86';
constexpr char kEmptyDict = '}';
constexpr char kSetItems = 'u';
constexpr char kEmptyList = ']';
constexpr char kAppends = 'e';
constexpr char kTrue = '\x88';
constexpr char kFalse = '\x89';
constexpr char kInt8 = 'K';
constexpr char kInt16 = 'M';
constexpr char kInt32 = 'J';
constexpr char kLong = '\x8a';
constexpr char kFloat = 'G';
constexpr char kShortText = '\x8c';
constexpr char kText = 'X';

constexpr std::int64_t kLargestBatch = 1000;
constexpr std::size_t kFlushBytes = std::size_t{1} << 16;

// nullptr: PyTorch has no such entry.
const char* action_name(allocator::Action action) {
  using allocator::Action;
  switch (action) {
    case Action::kAlloc:
      return "alloc";
    case Action::kFreeRequested:
      return "free_requested";
    case Action::kFreeCompleted:
      return "free_completed";
    case Action::kSegmentAlloc:
      return "segment_alloc";
    case Action::kSegmentFree:
      return "segment_free";
    case Action::kSegmentMap:
      return "segment_map";
    case Action::kSegmentUnmap:
      return "segment_unmap";
    case Action::kOom:
      return "oom";
    case Action::kMallocFailed:
    case Action::kReserve:
    case Action::kUnreserve:
    case Action::kCreateFailed:
      return nullptr;
  }
  return nullptr;
}

void little_endian(std::string& out, std::uint64_t bits, int bytes) {
  for (int i = 0; i < bytes; ++i) {
    out += static_cast<char>(bits >> (8 * i) & 0xff);
  }
}

}  // namespace

MemoryVizFile::MemoryVizFile(const std::string& path, int device_index, FramesOf frames)
    : file_(path), device_index_(device_index), frames_(std::move(frames)) {
  OOMCAST_CHECK(device_index >= 0 && device_index < kLargestBatch, "device {}", device_index);
  op('\x80');
  op('\x04');
  begin_dict();
  text("device_traces");  // a list by device number, each the list of its entries
  List devices;
  begin_list();
  for (int device = 0; device <= device_index_; ++device) {
    next_item(devices);
    begin_list();
  }
}

void MemoryVizFile::text(std::string_view value) {
  OOMCAST_CHECK(value.size() <= std::numeric_limits<std::uint32_t>::max(), "a text of {} bytes",
                value.size());
  const bool is_short = value.size() <= 0xff;
  op(is_short ? kShortText : kText);
  little_endian(out_, value.size(), is_short ? 1 : 4);
  out_ += value;
}

void MemoryVizFile::integer(std::int64_t value) {
  const auto bits = static_cast<std::uint64_t>(value);
  if (value >= 0 && value <= 0xff) {
    op(kInt8);
    little_endian(out_, bits, 1);
  } else if (value >= 0 && value <= 0xffff) {
    op(kInt16);
    little_endian(out_, bits, 2);
  } else if (value >= std::numeric_limits<std::int32_t>::min() &&
             value <= std::numeric_limits<std::int32_t>::max()) {
    op(kInt32);
    little_endian(out_, bits, 4);
  } else {
    op(kLong);
    op(8);
    little_endian(out_, bits, 8);
  }
}

void MemoryVizFile::real(double value) {
  op(kFloat);
  const auto bits = std::bit_cast<std::uint64_t>(value);
  for (int i = 7; i >= 0; --i) {
    out_ += static_cast<char>(bits >> (8 * i) & 0xff);
  }
}

void MemoryVizFile::boolean(bool value) { op(value ? kTrue : kFalse); }

void MemoryVizFile::begin_dict() {
  op(kEmptyDict);
  op(kMark);
}

void MemoryVizFile::end_dict() { op(kSetItems); }

void MemoryVizFile::begin_list() { op(kEmptyList); }

void MemoryVizFile::next_item(List& list) {
  if (list.items % kLargestBatch == 0) {
    if (list.items > 0) {
      op(kAppends);
    }
    op(kMark);
  }
  ++list.items;
}

void MemoryVizFile::end_list(const List& list) {
  if (list.items > 0) {
    op(kAppends);
  }
}

void MemoryVizFile::flush_if_large() {
  if (out_.size() >= kFlushBytes) {
    file_.append(out_);
    out_.clear();
  }
}

void MemoryVizFile::frames(std::uint32_t tag) {
  text("frames");
  List list;
  begin_list();
  for (const VizFrame& frame : frames_(tag)) {
    next_item(list);
    begin_dict();
    text("name");
    text(frame.name);
    text("filename");
    text(frame.filename);
    text("line");
    integer(frame.line);
    end_dict();
  }
  end_list(list);
}

void MemoryVizFile::add(const allocator::TraceEvent& event, std::int64_t time_us) {
  const char* action = action_name(event.action);
  if (action == nullptr) {
    return;
  }
  next_item(trace_);
  begin_dict();
  text("action");
  text(action);
  text(event.action == allocator::Action::kOom ? "device_free" : "addr");
  integer(event.address);
  text("size");
  integer(event.size.count());
  text("stream");
  integer(static_cast<std::int64_t>(event.stream));
  text("time_us");
  integer(time_us);
  frames(event.tag);
  end_dict();
  flush_if_large();
}

void MemoryVizFile::segment(const allocator::SegmentSnapshot& segment) {
  begin_dict();
  const auto number = [&](const char* key, std::int64_t value) {
    text(key);
    integer(value);
  };
  number("device", device_index_);
  number("address", segment.address);
  number("total_size", segment.size.count());
  number("allocated_size", segment.allocated.count());
  number("active_size", segment.active.count());
  number("requested_size", segment.requested.count());
  number("stream", static_cast<std::int64_t>(segment.stream));
  text("segment_type");
  text(segment.is_small ? "small" : "large");
  text("segment_pool_id");
  integer(0);
  integer(static_cast<std::int64_t>(segment.pool));
  op(kTuple2);
  text("is_expandable");
  boolean(segment.is_expandable);
  text("frames");
  begin_list();
  text("blocks");
  List blocks;
  begin_list();
  std::int64_t address = segment.address;
  for (const allocator::BlockLayout& block : segment.blocks) {
    const bool is_active = block.use != allocator::BlockUse::kFree;
    next_item(blocks);
    begin_dict();
    number("address", address);
    number("size", block.size.count());
    number("requested_size", block.requested.count());
    text("state");
    text(block.use == allocator::BlockUse::kAllocated ? "active_allocated"
         : is_active                                  ? "active_pending_free"
                                                      : "inactive");
    if (is_active) {
      frames(block.tag);
    } else {
      text("frames");
      begin_list();
    }
    end_dict();
    address += block.size.count();
    flush_if_large();
  }
  end_list(blocks);
  end_dict();
}

void MemoryVizFile::settings(const allocator::AllocatorSettings& settings) {
  begin_dict();
  text("PYTORCH_CUDA_ALLOC_CONF");
  text(settings.text);
  text("max_split_size");
  integer(settings.max_split_size ? settings.max_split_size->count() : -1);
  text("garbage_collection_threshold");
  real(settings.garbage_collection_threshold);
  text("expandable_segments");
  boolean(settings.expandable_segments);
  text("pinned_num_register_threads");
  integer(settings.pinned_num_register_threads);
  text("release_lock_on_cudamalloc");
  boolean(settings.release_lock_on_cudamalloc);
  text("pinned_use_cuda_host_register");
  boolean(settings.pinned_use_cuda_host_register);
  text("roundup_power2_divisions");  // by MiB
  begin_dict();
  for (std::size_t i = 0; i < settings.roundup_power2_divisions.size(); ++i) {
    text(std::to_string(std::int64_t{1} << i));
    integer(settings.roundup_power2_divisions[i]);
  }
  end_dict();
  end_dict();
}

void MemoryVizFile::finish(const std::vector<allocator::SegmentSnapshot>& segments,
                           const allocator::AllocatorSettings& allocator_settings) {
  end_list(trace_);
  op(kAppends);  // the list of devices, one batch
  text("segments");
  List list;
  begin_list();
  for (const allocator::SegmentSnapshot& each : segments) {
    next_item(list);
    segment(each);
  }
  end_list(list);
  text("allocator_settings");
  settings(allocator_settings);
  end_dict();
  op(kStop);
  file_.append(out_);
  out_.clear();
  file_.close();
}

}  // namespace oomcast
