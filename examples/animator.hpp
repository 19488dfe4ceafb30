// SPDX-License-Identifier: Apache-2.0
// A stopwatch and a live curve for the terminal, as in course notebooks.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <stdexcept>
#include <string>
#include <system_error>
#include <vector>

/// Measures several time intervals in seconds.
class Timer {
 public:
  void start() { began_ = Clock::now(); }
  void stop() { timings_.push_back(std::chrono::duration<double>(Clock::now() - began_).count()); }
  [[nodiscard]] double average() const {
    double sum = 0;
    for (const double time : timings_) sum += time;
    return timings_.empty() ? 0 : sum / static_cast<double>(timings_.size());
  }

 private:
  using Clock = std::chrono::steady_clock;
  Clock::time_point began_{};
  std::vector<double> timings_;
};

/// Draws a curve with one value from 0 to 1 per epoch: in the terminal after each, and as SVG if a file is given.
class Animator {
 public:
  Animator(std::string name, int64_t epochs, std::string svg)
      : name_(std::move(name)), epochs_(epochs), svg_(std::move(svg)) {}

  void add(double value) {
    values_.push_back(value);
    fmt::print("{}\n", terminal());
    std::fflush(stdout);
    write();
  }

  /// Writes the current file. The call before the first epoch fails early if the file is not writable.
  void write() const {
    if (svg_.empty()) return;
    std::ofstream file(svg_);
    file << svg();
    file.close();
    if (!file) {
      throw std::runtime_error(fmt::format("{} cannot be written: {}", svg_, std::generic_category().message(errno)));
    }
  }

  /// Returns "test accuracy ▁▄▆█ 0.871 (epoch 4 of 10)".
  [[nodiscard]] std::string terminal() const {
    static const char* const bars[] = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
    std::string curve;
    for (const double value : values_) curve += bars[std::clamp(static_cast<int>(value * 8), 0, 7)];
    return fmt::format("{} {} {:.3f} (epoch {} of {})", name_, curve, values_.back(), values_.size(), epochs_);
  }

  /// 480 x 320; a line through one point per epoch, with a grid at tenths.
  [[nodiscard]] std::string svg() const {
    const auto x = [&](size_t epoch) {
      return 40.0 + 420.0 * static_cast<double>(epoch) / static_cast<double>(std::max<int64_t>(epochs_ - 1, 1));
    };
    const auto y = [](double value) { return 290 - 270 * value; };
    std::string text =
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 480 320\" font-family=\"sans-serif\" "
        "font-size=\"11\">\n";
    for (int tenth = 0; tenth <= 10; tenth += 2) {
      text += fmt::format("<path d=\"M40 {0:.1f}H460\" stroke=\"#ddd\"/><text x=\"14\" y=\"{1:.1f}\">{2:.1f}</text>\n",
                          y(tenth / 10.0), y(tenth / 10.0) + 4, tenth / 10.0);
    }
    std::string points;
    for (size_t epoch = 0; epoch < values_.size(); ++epoch) {
      points += fmt::format("{:.1f},{:.1f} ", x(epoch), y(values_[epoch]));
      text += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3\" fill=\"#26c\"/>\n", x(epoch), y(values_[epoch]));
    }
    text += fmt::format("<polyline points=\"{}\" fill=\"none\" stroke=\"#26c\" stroke-width=\"2\"/>\n", points);
    return text + fmt::format("<text x=\"200\" y=\"312\">epoch, of {}</text><text x=\"40\" y=\"14\">{}</text></svg>\n",
                              epochs_, name_);
  }

 private:
  std::string name_;
  int64_t epochs_;
  std::string svg_;
  std::vector<double> values_;
};
