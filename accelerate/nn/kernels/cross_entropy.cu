// SPDX-License-Identifier: Apache-2.0
// Losses and gradients of rows of logits, one block of threads for each row. NVRTC compiles this text at run time after
// cross_entropy_arguments.hpp, and tests/nn/kernel_emulation.hpp runs it on the CPU. It therefore includes nothing and
// uses no instruction of a warp. Without __global__, functions are compiled for the device by NVRTC's option
// --device-as-default-execution-space.

namespace accelerate::nn {
namespace {

#ifdef __CUDACC_RTC__
float float16_value(unsigned short bits) {
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
  return value;
}

unsigned short float16_bits(float value) {
  unsigned short bits;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
  return bits;
}
#endif

float infinity() { return __uint_as_float(0x7f800000u); }

struct Float32 {
  using Bits = unsigned int;
  static float value(Bits bits) { return __uint_as_float(bits); }
  static Bits bits(float value) { return __float_as_uint(value); }
  static float exponential(float value) { return expf(value); }
};

struct BFloat16 {
  using Bits = unsigned short;
  static float value(Bits bits) { return __uint_as_float(static_cast<unsigned int>(bits) << 16); }
  static Bits bits(float value) {
    const unsigned int wide = __float_as_uint(value);
    if ((wide & 0x7fffffffu) > 0x7f800000u) return 0x7fc0;  // rounding could turn NaN into infinity
    return static_cast<Bits>((wide + 0x7fffu + ((wide >> 16) & 1u)) >> 16);
  }
  // The error of the fast exponential is far below that of 2-byte numbers.
  static float exponential(float value) { return __expf(value); }
};

struct Float16 {
  using Bits = unsigned short;
  static float value(Bits bits) { return float16_value(bits); }
  static Bits bits(float value) { return float16_bits(value); }
  static float exponential(float value) { return __expf(value); }
};

/// Elements in 16 bytes.
template <typename Number>
constexpr int kPack = static_cast<int>(16 / sizeof(typename Number::Bits));

template <typename Number>
void unpack(unsigned int word, float* values) {
  using Bits = typename Number::Bits;
  if constexpr (sizeof(Bits) == 4) {
    values[0] = Number::value(word);
  } else {
    values[0] = Number::value(static_cast<Bits>(word & 0xffffu));
    values[1] = Number::value(static_cast<Bits>(word >> 16));
  }
}

template <typename Number>
unsigned int pack(const float* values) {
  if constexpr (sizeof(typename Number::Bits) == 4) {
    return Number::bits(values[0]);
  } else {
    return static_cast<unsigned int>(Number::bits(values[0])) | static_cast<unsigned int>(Number::bits(values[1]))
                                                                    << 16;
  }
}

template <typename Number, bool kStore, typename Visit>
void visit_element(typename Number::Bits* row, int position, const Visit& visit) {
  float values[1] = {Number::value(row[position])};
  visit(values, position);
  if constexpr (kStore) row[position] = Number::bits(values[0]);
}

template <typename Number, bool kStore, typename Visit>
void visit_pack(typename Number::Bits* row, int position, const Visit& visit) {
  constexpr int kOfWord = kPack<Number> / 4;
  uint4* const place = reinterpret_cast<uint4*>(row + position);
  uint4 words = *place;
  float values[kPack<Number>];
  unpack<Number>(words.x, values);
  unpack<Number>(words.y, values + kOfWord);
  unpack<Number>(words.z, values + 2 * kOfWord);
  unpack<Number>(words.w, values + 3 * kOfWord);
  visit(values, position);
  if constexpr (kStore) {
    words.x = pack<Number>(values);
    words.y = pack<Number>(values + kOfWord);
    words.z = pack<Number>(values + 2 * kOfWord);
    words.w = pack<Number>(values + 3 * kOfWord);
    *place = words;
  }
}

/// Calls visit(values, position of the first value) for all elements of the row, divided over the threads of the block:
/// 16 bytes at a time, and one element at a time before the first and after the last 16-byte boundary. With kStore the
/// changed values are stored.
template <typename Number, bool kStore, typename Visit>
void visit_row(typename Number::Bits* row, int classes, const Visit& visit) {
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  const int skewed = static_cast<int>(reinterpret_cast<unsigned long long>(row) / sizeof(*row) % kPack<Number>);
  const int wanted_head = (kPack<Number> - skewed) % kPack<Number>;
  const int head = wanted_head < classes ? wanted_head : classes;
  const int packs = (classes - head) / kPack<Number>, tail = head + packs * kPack<Number>;
  for (int i = thread; i < head; i += threads) visit_element<Number, kStore>(row, i, visit);
  for (int i = thread; i < packs; i += threads) visit_pack<Number, kStore>(row, head + i * kPack<Number>, visit);
  for (int i = tail + thread; i < classes; i += threads) visit_element<Number, kStore>(row, i, visit);
}

/// Sums over elements z of a row: an online softmax.
struct RowSums {
  float maximum = -infinity();
  float sum = 0;     ///< of exp(z - maximum)
  float spread = 0;  ///< of (z - reference) * class weight; the reference is the same for all elements
};

/// Value that is subtracted from z. With -infinity, exp(z - maximum) would be NaN.
float offset_for(float maximum) { return maximum == -infinity() ? 0.0f : maximum; }

template <typename Number>
RowSums merged(const RowSums& left, const RowSums& right) {
  RowSums both;
  both.maximum = fmaxf(left.maximum, right.maximum);
  const float offset = offset_for(both.maximum);
  both.sum =
      left.sum * Number::exponential(left.maximum - offset) + right.sum * Number::exponential(right.maximum - offset);
  both.spread = left.spread + right.spread;
  return both;
}

/// Merges the sums of all threads of the block. Every thread gets the same result.
template <typename Number>
RowSums merged_over_block(const RowSums& own) {
  __shared__ float maximum[kCrossEntropyThreads];
  __shared__ float sum[kCrossEntropyThreads];
  __shared__ float spread[kCrossEntropyThreads];
  const unsigned int thread = threadIdx.x;
  maximum[thread] = own.maximum;
  sum[thread] = own.sum;
  spread[thread] = own.spread;
  __syncthreads();
  const auto of = [&](unsigned int index) {
    RowSums sums;
    sums.maximum = maximum[index];
    sums.sum = sum[index];
    sums.spread = spread[index];
    return sums;
  };
  for (unsigned int half = blockDim.x / 2; half > 0; half /= 2) {
    if (thread < half) {
      const RowSums both = merged<Number>(of(thread), of(thread + half));
      maximum[thread] = both.maximum;
      sum[thread] = both.sum;
      spread[thread] = both.spread;
    }
    __syncthreads();
  }
  return of(0);
}

template <typename Number>
class Row {
 public:
  Row(const CrossEntropyArguments& arguments, long long row)
      : given_(arguments),
        row_(row),
        logits_(static_cast<Bits*>(arguments.logits) + row * arguments.row_stride),
        classes_(static_cast<int>(arguments.classes)),
        target_(arguments.target[row]) {}

  void run() const {
    if (target_ == given_.ignore_index) return ignore();
    // Stops the program as the assertions of LibTorch's operators do. Nothing was read.
    if (target_ < 0 || target_ >= classes_) {
      if (threadIdx.x == 0) {
        __assertfail("linear_cross_entropy: the target is a class or ignore_index", "cross_entropy.cu", __LINE__, "run",
                     1);
      }
      return;
    }
    const float picked = Number::value(logits_[target_]) + (given_.bias != nullptr ? given_.bias[target_] : 0.0f);
    // RowSums::spread adds differences from one logit of the row, so a large common offset costs no precision.
    const float reference = fabsf(picked) < infinity() ? picked : 0.0f;
    const RowSums sums = merged_over_block<Number>(own_sums(reference));
    const float of_target = given_.of_target[row_], of_all = smoothed() ? given_.of_all[row_] : 0.0f;
    const float all_weights = given_.all_weights != nullptr ? *given_.all_weights : static_cast<float>(classes_);
    if (threadIdx.x == 0) {
      const float log_sum = logf(sums.sum);
      float loss = (log_sum - (picked - sums.maximum)) * of_target;
      if (smoothed()) {
        const float spread = sums.spread - (sums.maximum - reference) * all_weights;
        loss += (log_sum * all_weights - spread) * of_all;
      }
      given_.losses[row_] = loss;
    }
    if (given_.gradient == 0) return;
    const float factor = given_.row_factors != nullptr ? given_.row_factors[row_] : 1.0f;
    store_gradient(sums, of_target * factor, of_all * factor, all_weights);
  }

 private:
  using Bits = typename Number::Bits;

  bool smoothed() const { return given_.of_all != nullptr; }
  float class_weight(int position) const {
    return given_.class_weights != nullptr ? given_.class_weights[position] : 1.0f;
  }
  template <int kCount>
  void add_bias(float (&values)[kCount], int first) const {
    if (given_.bias == nullptr) return;
    for (int i = 0; i < kCount; ++i) values[i] += given_.bias[first + i];
  }

  void ignore() const {
    if (threadIdx.x == 0) given_.losses[row_] = 0.0f;
    if (given_.gradient == 0) return;
    visit_row<Number, true>(logits_, classes_, [](auto& values, int) {
      for (float& value : values) value = 0.0f;
    });
  }

  RowSums own_sums(float reference) const {
    RowSums sums;
    visit_row<Number, false>(logits_, classes_, [&](auto& values, int first) {
      add_bias(values, first);
      const float before = sums.maximum;
      for (const float value : values) sums.maximum = fmaxf(sums.maximum, value);
      const float offset = offset_for(sums.maximum);
      sums.sum *= Number::exponential(before - offset);
      for (const float value : values) sums.sum += Number::exponential(value - offset);
      if (!smoothed()) return;
      int position = first;
      for (const float value : values) sums.spread += (value - reference) * class_weight(position++);
    });
    return sums;
  }

  /// All threads have read the logits of other threads, because the sums were merged.
  void store_gradient(const RowSums& sums, float of_target, float of_all, float all_weights) const {
    const float scale = (of_target + of_all * all_weights) / sums.sum;
    const int target = static_cast<int>(target_);
    visit_row<Number, true>(logits_, classes_, [&](auto& values, int first) {
      add_bias(values, first);
      int position = first;
      for (float& value : values) {
        value = Number::exponential(value - sums.maximum) * scale;
        if (position == target) value -= of_target;
        if (smoothed()) value -= of_all * class_weight(position);
        ++position;
      }
    });
  }

  const CrossEntropyArguments& given_;
  long long row_;
  Bits* logits_;
  int classes_;
  long long target_;
};

}  // namespace

extern "C" __global__ void __launch_bounds__(kCrossEntropyThreads)
    cross_entropy_float32(const CrossEntropyArguments arguments) {
  Row<Float32>(arguments, blockIdx.x).run();
}

extern "C" __global__ void __launch_bounds__(kCrossEntropyThreads)
    cross_entropy_bfloat16(const CrossEntropyArguments arguments) {
  Row<BFloat16>(arguments, blockIdx.x).run();
}

extern "C" __global__ void __launch_bounds__(kCrossEntropyThreads)
    cross_entropy_float16(const CrossEntropyArguments arguments) {
  Row<Float16>(arguments, blockIdx.x).run();
}

}  // namespace accelerate::nn
