// Loads and runs every file that it is named on standard input: for a build with sanitizers, which ends it at the first
// access outside of what a file may touch.

#include "splinenets.h"

#include <unistd.h>
#include <cmath>
#include <cstdio>
#include <iostream>
#include <string>
#include <vector>

// One image of these pixels, then two
static void run(splinenets_network* network, float pixel) {
  splinenets_description about;
  splinenets_describe(network, &about);
  const int64_t count = 2, size = about.channels * about.height * about.width;
  std::vector<float> images(size_t(count * size), pixel), outputs(size_t(count * about.outputs)), told;
  for (int64_t i = 0; i < count * about.conditions; i++)
    told.push_back(float(splinenets_condition_at(network, i % about.conditions).low));
  splinenets_run(network, images.data(), told.data(), outputs.data(), 1);
  splinenets_run(network, images.data(), told.data(), outputs.data(), count);
}

int main() {
  std::string path;
  for (int number = 0; std::getline(std::cin, path); number++) {
    char message[200] = "";
    std::cout << path << std::flush;
    alarm(60);  // a file that never ends is as bad as one that breaks out
    splinenets_network* network = splinenets_load(path.c_str(), number % 8 ? 1 : 2, message, sizeof message);
    if (network)
      for (float pixel : {0.5f, NAN, INFINITY}) run(network, pixel);
    splinenets_free(network);
    std::cout << (network ? " ran" : std::string(" refused: ") + message) << std::endl;
  }
}
