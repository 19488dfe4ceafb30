// SPDX-License-Identifier: Apache-2.0
// Generates small data sets in real formats, for examples without data. The bytes are always the same.
#pragma once

#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>

namespace generated {

/// Folder of this user in the system's folder for temporary files.
inline std::filesystem::path folder(const std::string& name) {
  auto path = std::filesystem::temp_directory_path() / ("accelerate-examples-" + std::to_string(getuid())) / name;
  std::filesystem::create_directories(path);
  return path;
}

/// Writes the file atomically, because another program may read or write it concurrently.
inline void write(const std::filesystem::path& path, const std::string& bytes) {
  const auto unfinished = path.string() + "." + std::to_string(getpid());
  std::ofstream(unfinished, std::ios::binary) << bytes;
  std::filesystem::rename(unfinished, path);
}

/// CIFAR-10's binary version: six files of noisy images, each class with its own colour.
inline std::filesystem::path cifar10(int images_per_file = 160) {
  constexpr int kClasses = 10;
  constexpr int kChannels = 3;
  constexpr int kPixels = 32 * 32;
  std::mt19937 random(1);
  const auto path = folder("cifar10");
  for (const auto* name :
       {"data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5", "test_batch"}) {
    std::string file;
    for (int image = 0; image < images_per_file; ++image) {
      const int label = image % kClasses;
      file += static_cast<char>(label);
      for (int channel = 0; channel < kChannels; ++channel) {
        const double hue =
            2 * M_PI * (static_cast<double>(label) / kClasses + static_cast<double>(channel) / kChannels);
        const auto mean = static_cast<unsigned>(100 + 50 * std::cos(hue));
        for (int pixel = 0; pixel < kPixels; ++pixel) file += static_cast<char>(mean + random() % 64);
      }
    }
    write(path / (std::string(name) + ".bin"), file);
  }
  return path;
}

/// Sentences as bytes; each byte is a 16-bit token.
inline std::filesystem::path text(int sentences = 2000) {
  const std::string subjects[] = {"the cat", "a dog", "the old man", "my sister"};
  const std::string verbs[] = {"sees", "follows", "likes", "forgets"};
  const std::string objects[] = {"the moon", "a red ball", "the river", "every word"};
  std::mt19937 random(2);
  std::string file;
  for (int i = 0; i < sentences; ++i) {
    const auto sentence = subjects[random() % 4] + " " + verbs[random() % 4] + " " + objects[random() % 4] + ". ";
    for (const char letter : sentence) file += {letter, '\0'};
  }
  const auto path = folder("text") / "train.bin";
  write(path, file);
  return path;
}

}  // namespace generated
