// The part of the chunked engine that needs no state: from the rows of a chunk to what its steps read.
// Formulas in gated_delta_net_chunked.cu.
#pragma once

#include "cuda/gated_delta_net_chunk.cuh"
#include "cuda/tf32.cuh"

namespace deltaworks::cuda {

// By one warpgroup, for every kPreparers-th pair of chunks of a sequence. Its first two warps have 16
// tokens each of A of both, the others of P.
template <class T, bool kAligned>
class ChunkPreparer {
 public:
  __device__ ChunkPreparer(const GatedDeltaNetCall<T>& call, ChunkMemory& memory,
                           const Sequence& sequence, std::int32_t h, std::int32_t first_row,
                           int group)
      : call_(call),
        memory_(memory),
        scratch_(memory.scratch[group]),
        sequence_(sequence),
        h_(h),
        first_row_(first_row),
        group_(group) {}

  __device__ void run(int chunks) {
    const int pairs = (chunks + kPair - 1) / kPair;
    learn_own();
    if (group_ >= pairs) return;
    fetch(group_);
    if (!has_keys()) prepare_gates(group_, load_raw_gates(group_), kChunk);
    for (int pair = group_; pair < pairs; pair += kPreparers) prepare(pair, pairs);
  }

 private:
  // exp of it is 0 in float32, and 32 of them leave their sum eleven binary places.
  static constexpr float kLeastDecay = -110;

  // The number of this thread in its warpgroup. The compiler must not know that it stays the same: kept
  // from chunk to chunk, the addresses that follow from it would not fit into the registers.
  __device__ void learn_own() {
    own_ = threadIdx.x % kGroupThreads;
    asm volatile("" : "+r"(own_));
  }
  __device__ int own() const { return own_; }
  __device__ int warp() const { return own_ / 32; }
  __device__ int lane() const { return own_ % 32; }
  __device__ int row() const { return own_ % 32 / 4; }
  __device__ int column() const { return 2 * (own_ % 4); }
  __device__ int block() const { return own_ / 32 % 2; }  // of 16 tokens
  __device__ bool has_keys() const { return own_ < 64; }
  __device__ void sync() const { named_barrier(1 + group_, kGroupThreads); }
  // Of chunk `i` of a pair.
  __device__ ChunkGates& gates_of(unsigned pair, int i) {
    return scratch_.gates[pair / kPreparers % 2][i];
  }
  __device__ ChunkRows& rows_of(unsigned pair, int i) { return memory_.rows_of(kPair * pair + i); }

  __device__ void prepare(int pair, int pairs) {
    learn_own();
    const int next = pair + kPreparers;
    wait_for_async_copies();
    show_to_products();
    sync();
    float products[kPair][32];  // rows of [K; Q] [K; Q]ᵀ
    start_products(pair, products);
    RawGates raw{};
    if (!has_keys() && next < pairs) raw = load_raw_gates(next);
    products_wait<0>();
    hold(products[0]);
    hold(products[1]);
    bool is_even = store_norms(pair, products);
    if (own() < kPair) scratch_.bad_queries[own()] = 0;
    is_even = is_even && gates_of(pair, 0).bad == kChunk && gates_of(pair, 1).bad == kChunk;
    if (named_barrier_or(1 + group_, kGroupThreads, !is_even)) {
      mend(pair);
      start_products(pair, products);
      products_wait<0>();
      hold(products[0]);
      hold(products[1]);
    }
    bool fetches = next < pairs;
    if (fetches && (pair < kPreparers || memory_.is_consumed(pair - kPreparers))) {
      fetch(next);
      fetches = false;
    }
#pragma unroll
    for (int i = 0; i < kPair; ++i) {
      scale_products(scratch_.chunks[i], gates_of(pair, i), products[i]);
    }
    std::uint32_t words[16];
    if (has_keys()) {
#pragma unroll
      for (int i = 0; i < kPair; ++i) store_couplings(scratch_.chunks[i], products[i]);
      __syncwarp();
      invert_diagonal();
      named_barrier(1 + kPreparers + group_, 2 * 32);
      invert(words);
    } else {
#pragma unroll
      for (int i = 0; i < 16; ++i) {
        const float* const p = products[i / 8] + 2 * (i % 8);
        words[i] = pack2<T>(p[0], p[1]);
      }
      if (next < pairs) prepare_gates(next, raw, kChunk);
    }
    if (pair >= kPreparers) memory_.wait_until_consumed(pair - kPreparers);
    if (fetches) fetch(next);
    if (has_keys()) {
      store_inverse(shared_address(memory_.matrices_of(kPair * pair + block()).tile), words);
    } else {
      store_attention(memory_.matrices_of(kPair * pair).tile, words);
      store_attention(memory_.matrices_of(kPair * pair + 1).tile, words + 8);
      store_factors(pair);
    }
    show_to_products();
    memory_.prepared[group_].arrive();
  }

  // Starts copies of a pair's rows.
  __device__ void fetch(int pair) {
    const std::int32_t key = call_.key_column(h_), value = call_.column(h_, first_row_);
#pragma unroll
    for (int i = 0; i < kPair; ++i) {
      const int chunk = kPair * pair + i, count = tokens_in_chunk(sequence_, chunk);
      ChunkRows& rows = memory_.rows_of(chunk);
      const std::int64_t start = sequence_.start + static_cast<std::int64_t>(chunk) * kChunk;
      fetch_tiles<2>(rows.keys_queries, call_.key + start * call_.key_stride + key,
                     call_.key_stride, count);
      fetch_tiles<2>(rows.keys_queries + kChunk * kTileRowBytes,
                     call_.query + start * call_.query_stride + key, call_.query_stride, count);
      fetch_tiles<1>(rows.values, call_.value + start * call_.value_stride + value,
                     call_.value_stride, count);
    }
  }

  // Eight lanes a row of a tile, rows 16 apart, so that one swizzled offset serves all.
  template <int kTiles>
  __device__ void fetch_tiles(unsigned char* to, const T* from, std::int64_t stride,
                              int count) const {
    const int part = own() % 8, first = own() / 8;
    to += tile_offset(first, part);
    from += first * stride + 8 * part;
#pragma unroll
    for (int i = 0; i < kChunk; i += 16) {
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        unsigned char* const target = to + tile * kTileBytes + i * kTileRowBytes;
        if constexpr (kAligned) {
          async_copy16(target, from + tile * kTileColumns, first + i < count ? 16 : 0);
        } else {
          T elements[8];
#pragma unroll
          for (int e = 0; e < 8; ++e) {
            elements[e] = first + i < count ? from[tile * kTileColumns + e] : narrow<T>(0);
          }
          memcpy(target, elements, sizeof(elements));
        }
      }
      from += 16 * stride;
    }
  }

  // By the last two warps, a chunk each, a token a lane.
  __device__ RawGates load_raw_gates(int pair) const {
    const int chunk = kPair * pair + block();
    const std::int64_t start = sequence_.start + static_cast<std::int64_t>(chunk) * kChunk;
    return lane() < tokens_in_chunk(sequence_, chunk) ? load_gates(call_, start + lane(), h_)
                                                      : RawGates{};
  }

  // By the last two warps, a chunk each, a token a lane: update rates, and the sums of log decays. Tokens
  // from `end` on, and from the first that is not finite, count as absent.
  __device__ void prepare_gates(int pair, const RawGates& raw, int end) {
    ChunkGates& gates = gates_of(pair, block());
    const int count = tokens_in_chunk(sequence_, kPair * pair + block());
    float sum = 0, beta = 0;
    bool is_finite = true;
    if (lane() < count) {
      beta = update_rate_of(call_, raw.beta);
      if (call_.decay != nullptr) sum = log_decay_of(call_, raw.decay, raw.a_log, raw.dt_bias);
      is_finite = sum < 1e38f && fabsf(beta) < INFINITY;
      sum = at_least(sum, kLeastDecay) * 1.44269504f;
    }
    const int bad = min(__reduce_min_sync(kFullWarp, is_finite ? kChunk : lane()), end);
    if (lane() >= bad) sum = 0, beta = 0;
#pragma unroll
    for (int offset = 1; offset < 32; offset *= 2) {
      const float before = __shfl_up_sync(kFullWarp, sum, offset);
      if (lane() >= offset) sum += before;
    }
    gates.sum[lane()] = sum;
    gates.beta[lane()] = beta;
    if (lane() == 0) gates.bad = bad;
  }

  // Rows of [K; Q] [K; Q]ᵀ, of which that of Q and K is not needed.
  __device__ void start_products(int pair, float (&products)[kPair][32]) {
    products_begin();
#pragma unroll
    for (int i = 0; i < kPair; ++i) {
      const Tiles tiles = tiles_at(shared_address(rows_of(pair, i).keys_queries));
      multiply<T, false>(products[i], tiles, tiles);
#pragma unroll
      for (int k = 16; k < kKeyDim; k += 16) {
        multiply<T, true>(products[i], columns_from(tiles, k), columns_from(tiles, k));
      }
    }
    products_commit();
  }

  // Two lanes have a token, a tile each.
  __device__ int token() const { return own() / 2 % kChunk; }
  __device__ int token_chunk() const { return own() / 64; }
  __device__ int half() const { return own() % 2; }
  __device__ unsigned char* token_key(int pair) {
    return rows_of(pair, token_chunk()).keys_queries + half() * kTileBytes +
           token() * kTileRowBytes;
  }
  __device__ unsigned char* token_query(int pair) {
    return token_key(pair) + kChunk * kTileRowBytes;
  }

  // 1 / |k| or scale / |q| of this warp's rows, a row a lane, from the diagonals. False where a row needs
  // mending.
  __device__ bool store_norms(int pair, const float (&products)[kPair][32]) {
    // Of 16 rows and columns, lane 4 l + l / 2 has elements (l, l) and (l + 8, l + 8).
    const int l = lane() % 8, source = 4 * l + l / 2;
    const bool is_second = row() % 2 != 0;
    float squares = 0;
#pragma unroll
    for (int i = 0; i < kPair; ++i) {
#pragma unroll
      for (int below = 0; below < 2; ++below) {
        float own_squares = 0;  // sums, since a choice would put the array into memory
#pragma unroll
        for (int w = 0; w < 4; ++w) {
          const float* const p = products[i] + 8 * w + 6 * below;
          own_squares += w == warp() ? (is_second ? p[1] : p[0]) : 0;
        }
        const float its = __shfl_sync(kFullWarp, own_squares, source);
        if (lane() / 8 == 2 * i + below) squares = its;
      }
    }
    const int i = lane() / 16, t = 16 * block() + lane() % 16;
    const float factor = norm_factor(squares, 0);
    if (has_keys()) {
      store_key_factor(pair, i, t, factor);
    } else {
      scratch_.chunks[i].query_factor[t] = call_.scale * factor;
    }
    const std::uint32_t odd = __ballot_sync(kFullWarp, !is_even(squares));
    if (lane() == 0) scratch_.odd[has_keys() ? 0 : 1][block()] = odd;
    return odd == 0;
  }
  __device__ void store_key_factor(int pair, int i, int t, float factor) {
    scratch_.chunks[i].key_factor[t] = factor;
    scratch_.chunks[i].key_sum[t] = gates_of(pair, i).sum[t] - log2_approx(factor);
  }

  __device__ float norm_factor(float squares, int exponent) const {
    // The row was divided by 2^exponent.
    const float unit = exp2f(static_cast<float>(-exponent));
    return call_.epsilon > 0 ? rsqrtf(squares + call_.epsilon * unit * unit) : 1 / unit;
  }

  // Norms for which no product and no factor of a row leaves the range of T.
  __device__ static bool is_even(float squares) {
    constexpr float kRange = std::is_same_v<T, Float16> ? 0x1p16f : 0x1p80f;
    return squares == 0 || (squares > 1 / kRange && squares < kRange);
  }

  // Rarely: rows that are not finite become zeros and are noted, those of very large or small norm get one
  // near 1. The others keep their bits: a token changes none before it.
  __device__ void mend(int pair) {
    ChunkGates& gates = gates_of(pair, token_chunk());
    const float largest_key = row_maximum(token_key(pair));
    const float largest_query = row_maximum(token_query(pair));
    if (!(largest_key < INFINITY)) atomicMin(&gates.bad, token());
    if (!(largest_query < INFINITY)) {
      atomicOr(&scratch_.bad_queries[token_chunk()], 1u << token());
    }
    sync();
    const int bad = gates.bad, own_bad = gates_of(pair, block()).bad;
    sync();
    if (!has_keys()) prepare_gates(pair, load_raw_gates(pair), own_bad);
    sync();
    const int bit = 16 * token_chunk() + token() % 16;
    const bool is_absent = token() >= bad;
    const bool mends_key = is_absent || (scratch_.odd[0][token() / 16] >> bit & 1) != 0;
    const bool mends_query = is_absent || (scratch_.odd[1][token() / 16] >> bit & 1) != 0;
    const float key = mend_row(token_key(pair), largest_key, is_absent, mends_key);
    const float query = mend_row(token_query(pair), largest_query, is_absent, mends_query);
    if (half() == 0 && mends_key) store_key_factor(pair, token_chunk(), token(), key);
    if (half() == 1 && mends_query) {
      scratch_.chunks[token_chunk()].query_factor[token()] = call_.scale * query;
    }
    show_to_products();
    sync();
  }

  // By two lanes: the row's greatest magnitude; what is not finite gives infinity.
  __device__ static float row_maximum(const unsigned char* row) {
    float largest = 0;
#pragma unroll 1
    for (int e = 0; e < kTileColumns; ++e) {
      const float x = fabsf(widen(reinterpret_cast<const T*>(row)[e]));
      largest = x < INFINITY ? fmaxf(largest, x) : INFINITY;
    }
    return fmaxf(largest, __shfl_xor_sync(kFullWarp, largest, 1));
  }

  // By two lanes, if it `mends`: divides the row by a power of two, and returns what its products are to be
  // multiplied with.
  __device__ float mend_row(unsigned char* row, float largest, bool is_absent, bool mends) {
    const bool is_zero = is_absent || !(largest < INFINITY) || largest == 0;
    const int exponent = is_zero ? 0 : ilogbf(largest);
    float squares = 0;
#pragma unroll 1
    for (int e = 0; mends && e < kTileColumns; ++e) {
      T& element = reinterpret_cast<T*>(row)[e];
      const float x = is_zero ? 0 : scalbnf(widen(element), -exponent);
      element = narrow<T>(x);
      squares = fmaf(x, x, squares);
    }
    return norm_factor(squares + __shfl_xor_sync(kFullWarp, squares, 1), exponent);
  }

  // Products of rows as they came become A or P. Columns behind the rows of this warp stay as they are,
  // and the block on the diagonal keeps what is behind it.
  __device__ void scale_products(const ChunkScratch::Chunk& scratch, const ChunkGates& gates,
                                 float (&products)[32]) const {
    float sum[2], factor[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int t = 16 * block() + row() + 8 * i;
      sum[i] = gates.sum[t];
      factor[i] = !has_keys()     ? scratch.query_factor[t]
                  : call_.recalls ? gates.beta[t] * scratch.key_factor[t]
                                  : 0;
    }
#pragma unroll
    for (int j = 0; j < kChunk / 8; ++j) {
      if (j > 2 * block() + 1) break;
      const float2 sums = *reinterpret_cast<const float2*>(&scratch.key_sum[8 * j + column()]);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float* const p = products + 4 * j + 2 * i;
        p[0] *= exp2_approx(sum[i] - sums.x) * factor[i];
        p[1] *= exp2_approx(sum[i] - sums.y) * factor[i];
      }
    }
  }

  // Rows of A into the scratch, zeros on the diagonal and behind it: no token sees a later one.
  __device__ void store_couplings(ChunkScratch::Chunk& scratch, const float (&products)[32]) {
    float* const diagonal = &scratch.diagonal[block()][row()][column()];
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      float* const to = block() == 0 ? diagonal : &scratch.below[row()][column()];
      const float* const p = products + 4 * j;
      store_pair(to + 8 * j, p[0], p[1]);
      store_pair(to + 8 * j + 8 * kSquareStride, p[2], p[3]);
      if (block() == 0) continue;
      store_pair(diagonal + 8 * j, p[8], p[9]);
      store_pair(diagonal + 8 * j + 8 * kSquareStride, p[10], p[11]);
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int t = row() + i / 4 * 8, s = i / 2 % 2 * 8 + column() + i % 2;
      if (s >= t) scratch.diagonal[block()][t][s] = 0;
    }
  }
  __device__ static void store_pair(float* to, float left, float right) {
    *reinterpret_cast<float2*>(to) = {to_tf32(left), to_tf32(right)};
  }

  // The inverses of I + A of the diagonal blocks of this warp's rows, in place: a lane a column, half a
  // warp a chunk.
  __device__ void invert_diagonal() {
    SquareRows& a = scratch_.chunks[lane() / 16].diagonal[block()];
    const int own_column = lane() % 16;
    float x[16];
#pragma unroll
    for (int t = 0; t < 16; ++t) x[t] = t == own_column ? 1 : 0;
#pragma unroll
    for (int t = 1; t < 16; ++t) {
      float coupling[16];
#pragma unroll
      for (int s = 0; s < t; s += 4) {
        *reinterpret_cast<float4*>(&coupling[s]) = *reinterpret_cast<const float4*>(&a[t][s]);
      }
#pragma unroll
      for (int s = 0; s < t; ++s) x[t] = fmaf(-coupling[s], x[s], x[t]);
    }
    __syncwarp();
#pragma unroll
    for (int t = 0; t < 16; ++t) a[t][own_column] = to_tf32(x[t]);
  }

  // T = (I + A)⁻¹ of a chunk by a warp, as words of the transposed blocks: with D the inverses of the
  // diagonal blocks, D_0, below it −D_1 A_10 D_0, and D_1.
  __device__ void invert(std::uint32_t (&words)[16]) const {
    const ChunkScratch::Chunk& scratch = scratch_.chunks[block()];
    Square blocks[2];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const auto& d = scratch.diagonal[i / 2];
      const int k = 8 * (i % 2) + column();
      blocks[i / 2].at[i % 2] = {d[k][row()], d[k + 1][row()], d[k][row() + 8],
                                 d[k + 1][row() + 8]};
    }
    Square sum{}, product{};
    multiply_transposed(sum, blocks[0], scratch.below, lane());
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const float4& s = sum.at[n];
      sum.at[n] = to_tf32(float4{-s.x, -s.y, -s.z, -s.w});
    }
    multiply_transposed(product, sum, scratch.diagonal[1], lane());
    pack(blocks[0], words);
    pack(product, words + 4);
    pack(blocks[1], words + 8);
  }
  __device__ static void pack(const Square& square, std::uint32_t* words) {
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const float4& s = square.at[n];
      words[2 * n] = pack2<T>(s.x, s.y), words[2 * n + 1] = pack2<T>(s.z, s.w);
    }
  }

  __device__ void store_inverse(std::uint32_t tile, const std::uint32_t (&words)[16]) const {
    const int matrix = lane() / 8, part = matrix % 2, t = 8 * (matrix / 2) + lane() % 8;
    store_transposed({words[0], words[1], words[2], words[3]}, tile + tile_offset(t, part));
    store_transposed({words[4], words[5], words[6], words[7]}, tile + tile_offset(t + 16, part));
    store_transposed({words[8], words[9], words[10], words[11]},
                     tile + tile_offset(t + 16, part + 2));
  }

  // Zeros behind the diagonal: no token sees a later one.
  __device__ void store_attention(unsigned char* tile, const std::uint32_t* words) const {
    unsigned char* const rows = tile + (16 * block() + row()) * kTileRowBytes + 2 * column();
#pragma unroll
    for (int j = 0; j < kChunk / 8; ++j) {
      if (j > 2 * block() + 1) break;
      unsigned char* const to = rows + ((ChunkMatrices::kAttentionPart + j ^ row()) << 4);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        *reinterpret_cast<std::uint32_t*>(to + 8 * i * kTileRowBytes) = words[2 * j + i];
      }
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int t = row() + i / 4 * 8, j = i / 2 % 2, s = 8 * j + column() + i % 2;
      const int part = ChunkMatrices::kAttentionPart + 2 * block() + j ^ row();
      auto* const word = reinterpret_cast<T*>(rows + (part << 4) + i / 4 * 8 * kTileRowBytes);
      if (s > t) word[i % 2] = narrow<T>(0);
    }
  }

  // By the last two warps, a chunk each, a token a lane.
  __device__ void store_factors(int pair) {
    const ChunkGates& gates = gates_of(pair, block());
    const ChunkScratch::Chunk& scratch = scratch_.chunks[block()];
    ChunkFactors& factors = memory_.factors_of(kPair * pair + block());
    const int t = lane();
    const float sum = gates.sum[t], last = gates.sum[kChunk - 1];
    const float decay = exp2_approx(sum);
    factors.error[t] = {gates.beta[t], call_.recalls ? decay * scratch.key_factor[t] : 0};
    factors.tail[t] = exp2_approx(last - scratch.key_sum[t]);
    factors.result[t] = decay * scratch.query_factor[t];
    if (t > 0) return;
    factors.whole = exp2_approx(last);
    factors.bad = gates.bad;
    factors.bad_queries = scratch_.bad_queries[block()];
  }

  const GatedDeltaNetCall<T>& call_;
  ChunkMemory& memory_;
  ChunkScratch& scratch_;
  const Sequence sequence_;
  const std::int32_t h_, first_row_;
  const int group_;
  int own_;
};

}  // namespace deltaworks::cuda
