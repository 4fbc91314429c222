// PyTorch's CUDA caching allocator (c10/cuda/CUDACachingAllocator.cpp, native backend, version
// 2.15), call for call: the same addresses, the same requests to the driver, the same statistics.
//
// Words
//   segment  a range of addresses from the driver: one cudaMalloc, or the reserved range of an
//            expandable segment, of which pages are mapped as needed. Its age is its number.
//   block    a part of a segment; the blocks of a segment tile it in address order.
//   pool     segments that serve the same allocations; each has a half for small requests (rounded
//            to at most 1 MiB) and one for large. A block stays on its stream for good.
//   list     the free blocks of one pool half and stream.
//
// An allocator is a value: a copy goes on as the original would, handles included.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "sim/allocator/device.hpp"
#include "sim/allocator/free_index.hpp"
#include "sim/allocator/ids.hpp"
#include "sim/allocator/out_of_memory.hpp"
#include "sim/allocator/settings.hpp"
#include "sim/allocator/snapshot.hpp"
#include "sim/allocator/stats.hpp"
#include "sim/allocator/trace.hpp"
#include "sim/core/digest.hpp"

namespace oomcast::allocator {

// On allocate() and free() all that is called is inlined (`flatten`), except what is marked cold: a
// quarter more calls a second than the compiler's own choice.
class CachingAllocator {
 public:
  // Throws ConfigError for an impossible device.
  CachingAllocator(const DeviceConfig& device, const AllocatorSettings& settings);

  // --- Allocation
  // kNull for 0 bytes, which never reaches PyTorch's allocator; nothing when memory ran out, and
  // last_oom() has the numbers. `tag` is the caller's, and returns in traces and snapshots.
  [[gnu::flatten]] Allocation allocate(Bytes size, StreamId stream = StreamId::kDefault,
                                       std::uint32_t tag = 0);
  // The block must be allocated. It returns to its pool at once, or, if other streams used it, when
  // their events have completed (polled at the next allocation).
  [[gnu::flatten]] void free(BlockHandle block);
  // The block is also used on `stream`.
  void record_stream(BlockHandle block, StreamId stream);
  // Outside the allocator: the oldest `count` events on `stream` that are not complete now are (all
  // of them for 0).
  void complete_events(StreamId stream, std::int64_t count);
  // Returns cached memory to the driver: of the default pool (not within a capture) and of private
  // pools without uses; with a pool, only that one's.
  void empty_cache();
  void empty_cache(PoolId pool);

  // --- Private pools. Callers keep PyTorch's preconditions, which are checked: see has_uses() and
  // is_routed().
  // From now on allocations on `stream` (any, if none) go to `pool`, which is made or gets a use.
  void begin_pool(PoolId pool, std::optional<StreamId> stream);
  void end_pool(PoolId pool);
  void create_pool(PoolId pool);   // makes it, or adds a use
  void release_pool(PoolId pool);  // drops a use
  void set_use_on_oom(PoolId pool, bool on);
  void set_no_split(PoolId pool, bool on);
  // False for a pool that is unknown or has lost its last use.
  [[nodiscard]] bool has_uses(PoolId pool) const;
  [[nodiscard]] bool exists(PoolId pool) const { return find_pool(pool).has_value(); }
  [[nodiscard]] bool is_routed(PoolId pool) const;

  // --- Graph captures: `stream` is being captured and is the current stream; afterwards the
  // default stream is current.
  void begin_capture(StreamId stream);
  void end_capture(StreamId stream);
  [[nodiscard]] bool is_capturing(StreamId stream) const;
  void set_current_stream(StreamId stream);

  // --- Limits and settings
  // set_per_process_memory_fraction; 0 <= fraction <= 1, and 1 is no limit.
  void set_memory_fraction(double fraction);
  // set_allocator_settings, with what apply_allocator_conf made of settings().
  void set_settings(const AllocatorSettings& settings);
  void reset_peaks();

  // --- Views
  [[nodiscard]] const AllocatorStats& stats() const { return stats_; }
  [[nodiscard]] const AllocatorSettings& settings() const { return settings_; }
  [[nodiscard]] Device& device() { return device_; }
  [[nodiscard]] const Device& device() const { return device_; }
  [[nodiscard]] std::optional<Bytes> memory_limit() const;
  [[nodiscard]] const OutOfMemory& last_oom() const { return last_oom_; }
  [[nodiscard]] std::int64_t address(BlockHandle block) const { return at(block).address; }
  [[nodiscard]] Bytes block_size(BlockHandle block) const { return Bytes{at(block).size}; }
  [[nodiscard]] PoolId pool(BlockHandle block) const;
  // Number of the block's segment and offset in it.
  [[nodiscard]] std::pair<std::int64_t, Bytes> place(BlockHandle block) const;
  // All segments with all their blocks, unmapped ones included, in address order.
  [[nodiscard]] std::vector<SegmentLayout> layout() const;
  // torch.cuda.memory_snapshot()'s segments.
  [[nodiscard]] std::vector<SegmentSnapshot> snapshot() const;
  // Equal digests: the same calls give the same addresses, and handles of live blocks mean the
  // same. Which handles later blocks get, statistics and tags do not enter. Cost: some 8 ns a
  // block.
  [[nodiscard]] std::uint64_t state_digest() const;
  // Aborts if an internal list disagrees with the blocks.
  void verify() const;

  // Appends to `trace` from now on (none: stops). A copy of the allocator does not trace.
  void trace_to(Trace* trace) { trace_.sink = trace; }

 private:
  static constexpr std::uint32_t kNone = 0xffffffff;

  enum class BlockState : std::uint8_t { kSpare, kFree, kUnmapped, kAllocated, kPending };

  // One cache line.
  struct Block {
    std::int64_t address = 0;
    std::int64_t size = 0;
    std::int64_t requested = 0;
    std::int64_t freed_at = 0;  // searches_ when it became free
    std::uint32_t previous = kNone;
    std::uint32_t next = kNone;  // also the chain of spare blocks
    std::uint32_t segment = kNone;
    std::uint32_t list = kNone;
    std::uint32_t tag = 0;
    std::uint32_t uses = kNone;  // on other streams: into uses_
    std::int32_t events = 0;     // outstanding
    BlockState state = BlockState::kSpare;
    bool is_small = false;
    bool is_expandable = false;
  };
  static_assert(sizeof(Block) == 64);

  struct Segment {
    std::int64_t number = 0;  // its age
    std::int64_t address = 0;
    std::int64_t size = 0;
    std::int64_t page = 0;  // 0: not expandable
    std::uint32_t first = kNone;
    std::uint32_t list = kNone;
  };

  struct FreeList {
    FreeIndex free;
    std::vector<std::uint32_t> unmapped;  // by address
    StreamId stream = StreamId::kDefault;
    std::uint32_t pool = kNone;
    bool is_small = false;
  };

  struct Pool {
    PoolId id = PoolId::kDefault;
    std::int64_t uses = 0;
    std::int64_t reserved = 0;  // bytes of its segments and mapped pages
    bool no_split = false;
    // Lists by stream, for large and small.
    std::array<std::vector<std::pair<StreamId, std::uint32_t>>, 2> lists;
  };

  struct Route {
    PoolId pool;
    std::optional<StreamId> stream;
  };

  // Streams that used a block besides its own, and those of them recorded within a capture.
  struct StreamUses {
    std::vector<StreamId> recorded;
    std::vector<StreamId> captured;
  };

  struct StreamEvents {
    StreamId stream;
    std::deque<std::uint32_t> blocks;  // oldest first
    std::size_t complete = 0;          // of the oldest
  };

  struct Request {
    std::int64_t requested;
    std::int64_t size;  // rounded
    StreamId stream;
    std::uint32_t list;
    bool is_small;
    bool expandable;  // new memory comes from expandable segments
  };

  struct Found {
    std::uint32_t block = kNone;
    bool is_listed = false;  // not so if fresh from the driver
    FreeIndex::Position at{};
  };

  // A freed block after it was joined with its neighbours.
  struct Merged {
    std::uint32_t block;
    std::int64_t joined_bytes;  // of the neighbours
    std::int64_t joined_blocks;
  };

  // Where a copy would write the same trace, it writes none.
  struct TraceSink {
    TraceSink() = default;
    TraceSink(const TraceSink& /*other*/) {}
    TraceSink& operator=(const TraceSink& /*other*/) { return *this; }
    ~TraceSink() = default;
    Trace* sink = nullptr;
  };

  // --- Blocks, segments, lists (blocks.cpp)
  [[nodiscard]] const Block& at(BlockHandle block) const;
  std::uint32_t new_block();
  void drop_block(std::uint32_t block);
  std::uint32_t new_segment(std::int64_t address, std::int64_t size, std::int64_t page,
                            std::uint32_t list, BlockState state);
  void drop_segment(std::uint32_t segment);
  std::uint32_t split_front(std::uint32_t block, std::int64_t size);
  void absorb_next(std::uint32_t block);
  std::uint32_t list_for(std::uint32_t pool, bool is_small, StreamId stream);
  // Order of equally large free blocks.
  [[nodiscard]] auto before() const {
    return [this](std::uint32_t left, std::uint32_t right) {
      const Block& a = blocks_[left];
      const Block& b = blocks_[right];
      return a.segment != b.segment ? segments_[a.segment].number < segments_[b.segment].number
                                    : a.address < b.address;
    };
  }
  static FreeIndex::Key key(std::int64_t size) { return static_cast<FreeIndex::Key>(size >> 9); }
  [[nodiscard]] FreeIndex::Position position(std::uint32_t block) const;
  void insert_free(std::uint32_t block);
  void remove_free(std::uint32_t block);
  void insert_unmapped(std::uint32_t block);
  void remove_unmapped(std::uint32_t block);

  // --- Allocation and free (allocate.cpp)
  [[nodiscard]] std::int64_t round_size(std::int64_t size) const;
  [[nodiscard]] std::int64_t segment_size(const Request& request) const;
  Request make_request(std::int64_t size, StreamId stream);
  Found find_free(const Request& request);
  [[gnu::noinline]] FreeIndex::Position choose_expandable(const Request& request,
                                                          FreeIndex::Position at) const;
  [[nodiscard]] bool should_split(const Block& block, const Request& request) const;
  BlockHandle hand_out(const Request& request, const Found& found, std::uint32_t tag);
  void complete_free(std::uint32_t block);
  Merged merge_free(std::uint32_t block);

  // --- New memory (grow.cpp)
  [[gnu::cold, gnu::noinline]] Found find_memory(Request& request);
  Found borrow_on_oom(Request& request);
  Found grow(const Request& request, bool is_retry);
  Found grow_expandable(const Request& request);
  std::uint32_t find_room(const Request& request);
  [[nodiscard]] bool has_room(std::uint32_t block, std::int64_t size) const;
  std::uint32_t map_block(std::uint32_t block, std::int64_t size);
  void out_of_memory(const Request& request, OutOfMemory::Kind kind);
  [[nodiscard]] bool rejects_early(const Request& request) const;
  [[nodiscard]] std::int64_t address_range(std::int64_t page) const;

  // --- Back to the driver (release.cpp)
  void collect_garbage();
  bool release_oversize(const Request& request);
  void release_cached();
  void release_half(std::uint32_t pool, bool is_small);
  void release_private(std::uint32_t pool);
  void release_segment(std::uint32_t block);
  void unmap_block(std::uint32_t block);
  void delete_pool(std::uint32_t pool);

  // --- Streams (streams.cpp)
  [[gnu::cold, gnu::noinline]] void poll_events();
  void wait_for_events(std::optional<std::uint32_t> pool);
  [[gnu::cold, gnu::noinline]] void insert_events(std::uint32_t block);
  void insert_deferred_events();
  void finish_event(std::uint32_t block);
  [[gnu::cold, gnu::noinline]] void drop_uses(Block& block);
  StreamEvents& events_of(StreamId stream);

  // --- Pools (pools.cpp)
  [[nodiscard]] std::optional<std::uint32_t> find_pool(PoolId id) const;
  std::uint32_t make_or_use_pool(PoolId id);
  [[nodiscard]] std::uint32_t target_pool(StreamId stream) const;

  [[gnu::cold, gnu::noinline]] void record(Action action, const Block& block, Bytes size,
                                           std::uint32_t handle);
  void record_segment(Action action, const Segment& segment, std::int64_t address,
                      std::int64_t size);
  void digest_segments(Digest& digest) const;
  void digest_pools_and_streams(Digest& digest) const;
  void count_reserved(std::uint32_t list, std::int64_t change);
  void refresh_settings();

  AllocatorSettings settings_;
  Device device_;
  AllocatorStats stats_;
  OutOfMemory last_oom_;
  TraceSink trace_;

  // From the settings, in the form the hot path wants.
  std::int64_t max_split_size_ = 0;  // largest int64: unlimited
  std::int64_t max_non_split_rounding_ = 0;
  bool rounds_to_divisions_ = false;
  bool counts_searches_ = false;  // garbage collection can run
  std::optional<std::int64_t> limit_;

  std::vector<Block> blocks_;
  std::uint32_t spare_block_ = kNone;
  std::vector<Segment> segments_;
  std::vector<std::uint32_t> spare_segments_;
  std::vector<std::uint32_t> segments_by_age_;  // those alive
  std::int64_t next_segment_number_ = 0;
  std::vector<FreeList> lists_;
  std::vector<std::uint32_t> spare_lists_;
  std::vector<Pool> pools_;  // the first is the default pool
  std::vector<std::uint32_t> spare_pools_;
  std::vector<std::pair<PoolId, std::uint32_t>> private_pools_;  // by id
  std::vector<PoolId> use_on_oom_;                               // by id
  std::vector<PoolId> no_split_;                                 // by id
  std::vector<Route> routes_;                                    // innermost last
  std::int64_t searches_ = 0;  // in the default pool's large half while counts_searches_

  StreamId current_stream_ = StreamId::kDefault;
  std::vector<StreamId> captures_;
  bool capturing_ = false;  // the current stream is being captured
  std::vector<StreamUses> uses_;
  std::vector<std::uint32_t> spare_uses_;
  std::vector<StreamEvents> events_;  // by stream; none is without blocks
  std::vector<std::uint32_t> deferred_;
  std::size_t complete_events_ = 0;  // complete, not yet polled
};

}  // namespace oomcast::allocator
