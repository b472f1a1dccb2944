// What the probes are given, and where they write: a word a thread of the grid.
#pragma once
#include <device.h>

struct Probe {
	u64* out;
	u64 argument;
};
