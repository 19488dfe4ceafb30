// SPDX-License-Identifier: Apache-2.0
// A progress bar, and ranges that display one during iteration.
#pragma once

#include <fmt/format.h>

#include <chrono>
#include <concepts>
#include <cstdint>
#include <iterator>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>

#include "accelerate/tracking/meter.hpp"

namespace accelerate::tracking {

struct ProgressOptions {
  std::string description{};
  /// Name of one step.
  std::string unit = "it";
  /// Total number of steps. If unset, the size of the range; if that is unknown, only numbers are shown without a bar.
  std::optional<int64_t> total{};
  /// If true, nothing is displayed.
  bool disable = false;
  /// If true, only the main process displays the bar.
  bool main_process_only = true;
  /// If true, the final line remains on the screen. The final line of a nested bar is always erased.
  bool leave = true;
  /// Minimum time between two redraws on a terminal. In between, a step costs one clock query.
  std::chrono::milliseconds interval{100};
  /// Interval between two lines if the output is not a terminal.
  std::chrono::milliseconds line_interval{std::chrono::seconds(10)};
  /// Width in columns. If unset, the width of the terminal.
  std::optional<int64_t> width{};
  /// File descriptor of the output. The default is stderr.
  int output = 2;
};

/// On a terminal the bar is one line that is redrawn; nested bars are below each other. Elsewhere it prints a line at
/// intervals and one at the end. Not thread-safe.
class ProgressBar {
 public:
  explicit ProgressBar(const ProgressOptions& options);
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;
  /// Calls finish().
  ~ProgressBar();

  void update(int64_t steps = 1) {
    meter_.done += steps;
    if (shown_ && Clock::now() >= next_) draw();
  }
  /// Sets the text after the rate, "loss={:.3f}". It appears at the next redraw.
  template <typename... Args>
  void set_postfix(fmt::format_string<Args...> format, Args&&... args) {
    if (shown_) meter_.postfix = fmt::format(format, std::forward<Args>(args)...);
  }
  void set_description(std::string description) { meter_.description = std::move(description); }
  /// Draws the final line. Never throws. Later updates are ignored.
  void finish() noexcept;

 private:
  using Clock = std::chrono::steady_clock;

  void draw();
  void measure();
  [[nodiscard]] std::string line(bool last);
  void write_line(const std::string& text, bool last) const;

  ProgressOptions options_;
  Meter meter_;
  bool shown_;
  bool terminal_;
  int64_t row_ = 0;  // 0 for the outermost bar
  Clock::time_point begin_, next_, measured_;
  int64_t measured_steps_ = 0;
  double recent_steps_ = 0, recent_seconds_ = 0;
};

/// A range that draws its progress and yields the elements of the wrapped range.
///
/// \param range  An lvalue is kept by reference, an rvalue by value.
template <typename Range>
class ProgressRange {
  using Inner = decltype(std::declval<std::remove_reference_t<Range>&>().begin());
  using End = decltype(std::declval<std::remove_reference_t<Range>&>().end());

 public:
  class Iterator {
   public:
    using iterator_concept = std::input_iterator_tag;
    using value_type = std::remove_cvref_t<decltype(*std::declval<const Inner&>())>;
    using difference_type = std::ptrdiff_t;

    Iterator(Inner inner, End end, ProgressBar* bar) : inner_(std::move(inner)), end_(std::move(end)), bar_(bar) {
      if (at_end()) bar_->finish();
    }
    decltype(auto) operator*() const { return *inner_; }
    Iterator& operator++() {
      bar_->update();
      ++inner_;
      if (at_end()) bar_->finish();
      return *this;
    }
    void operator++(int) { ++*this; }
    bool operator==(std::default_sentinel_t) const { return at_end(); }
    /// Iterator of the wrapped range, through which loaders expose their position.
    [[nodiscard]] const Inner& base() const { return inner_; }

   private:
    [[nodiscard]] bool at_end() const { return inner_ == end_; }
    Inner inner_;
    End end_;
    ProgressBar* bar_;
  };

  ProgressRange(Range&& range, const ProgressOptions& options)
      : range_(std::forward<Range>(range)), options_(options) {}
  ProgressRange(const ProgressRange&) = delete;
  ProgressRange& operator=(const ProgressRange&) = delete;

  /// Starts a pass with a new bar.
  Iterator begin() {
    ProgressOptions options = options_;
    if (!options.total) options.total = size();
    bar_.reset();  // releases the screen row of the previous pass first
    bar_.emplace(options);
    return Iterator(range_.begin(), range_.end(), &*bar_);
  }
  std::default_sentinel_t end() const { return {}; }

  /// See ProgressBar.
  template <typename... Args>
  void set_postfix(fmt::format_string<Args...> format, Args&&... args) {
    if (bar_) bar_->set_postfix(format, std::forward<Args>(args)...);
  }
  void set_description(const std::string& description) {
    options_.description = description;
    if (bar_) bar_->set_description(description);
  }

 private:
  [[nodiscard]] std::optional<int64_t> size() const {
    if constexpr (requires {
                    { range_.size() } -> std::convertible_to<int64_t>;
                  }) {
      return static_cast<int64_t>(range_.size());
    } else if constexpr (requires {
                           { range_.size() } -> std::convertible_to<std::optional<int64_t>>;
                         }) {
      return range_.size();  // a stream may know its length
    } else {
      return std::nullopt;
    }
  }

  Range range_;
  ProgressOptions options_;
  std::optional<ProgressBar> bar_;
};

}  // namespace accelerate::tracking
