package tuning

const (
	kib Size = 1 << 10
	mib Size = 1 << 20
)

// sourceH200 says how measuredH200 was measured.
const sourceH200 = "symmem tune on 4 NVIDIA H200 joined by NVLink (NV18, multicast off), driver " +
	"580.159, NCCL 2.28.9, 2026-11-20: 21 batches of 5ms on each path in turns, bfloat16, replays " +
	"of graphs of up to 20 calls, medians of the slowest rank; 4 ranks in place by symmem bench " +
	"collective --compare, 21 batches of 10ms, and 2 ranks out of place on the same box, both " +
	"without their noise; " + RuleOfDerive

// measuredH200 are the times of each operation out of place and in place, at ascending sizes. The
// plain path's 9.317 us of ReduceScatter, the first of its operation, were 6.69 us in the
// comparison; either way the window path is the faster one.
var measuredH200 = []struct {
	operation           string
	ranks               int
	outOfPlace, inPlace []Point
}{
	{
		operation: "AllReduce", ranks: 2,
		outOfPlace: []Point{
			{Bytes: 1 * kib, PlainUS: 9.1, WindowUS: 6.6},
			{Bytes: 16 * kib, PlainUS: 10.2, WindowUS: 7.4},
			{Bytes: 64 * kib, PlainUS: 10.4, WindowUS: 10.9},
			{Bytes: 128 * kib, PlainUS: 10.1, WindowUS: 14.0},
			{Bytes: 256 * kib, PlainUS: 11.3, WindowUS: 11.3},
			{Bytes: 512 * kib, PlainUS: 12.7, WindowUS: 16.3},
			{Bytes: 1 * mib, PlainUS: 16.4, WindowUS: 18.9},
			{Bytes: 4 * mib, PlainUS: 34.3, WindowUS: 31.0},
			{Bytes: 16 * mib, PlainUS: 80.4, WindowUS: 82.4},
			{Bytes: 64 * mib, PlainUS: 247.9, WindowUS: 311.0},
		},
	},
	{
		operation: "AllReduce", ranks: 4,
		outOfPlace: []Point{
			{Bytes: 1 * kib, PlainUS: 9.449, WindowUS: 4.393, NoisePercent: 1},
			{Bytes: 2 * kib, PlainUS: 9.241, WindowUS: 4.431, NoisePercent: 0.4},
			{Bytes: 4 * kib, PlainUS: 9.438, WindowUS: 4.671, NoisePercent: 0.5},
			{Bytes: 8 * kib, PlainUS: 9.742, WindowUS: 4.707, NoisePercent: 0.6},
			{Bytes: 16 * kib, PlainUS: 10.634, WindowUS: 4.946, NoisePercent: 0.3},
			{Bytes: 32 * kib, PlainUS: 10.888, WindowUS: 7.033, NoisePercent: 0.6},
			{Bytes: 64 * kib, PlainUS: 11.052, WindowUS: 10.164, NoisePercent: 0.9},
			{Bytes: 128 * kib, PlainUS: 11.226, WindowUS: 14.355, NoisePercent: 0.4},
			{Bytes: 256 * kib, PlainUS: 11.579, WindowUS: 14.699, NoisePercent: 0.4},
			{Bytes: 512 * kib, PlainUS: 14.386, WindowUS: 16.264, NoisePercent: 0.4},
			{Bytes: 1 * mib, PlainUS: 18.234, WindowUS: 20.742, NoisePercent: 0.5},
			{Bytes: 2 * mib, PlainUS: 27.618, WindowUS: 24.619, NoisePercent: 0.3},
			{Bytes: 4 * mib, PlainUS: 40.746, WindowUS: 37.863, NoisePercent: 0.4},
			{Bytes: 8 * mib, PlainUS: 60.594, WindowUS: 59.796, NoisePercent: 0.3},
			{Bytes: 16 * mib, PlainUS: 98.778, WindowUS: 106.959, NoisePercent: 0.4},
			{Bytes: 32 * mib, PlainUS: 173.845, WindowUS: 215.098, NoisePercent: 0.7},
			{Bytes: 64 * mib, PlainUS: 319.775, WindowUS: 408.458, NoisePercent: 0.6},
			{Bytes: 128 * mib, PlainUS: 611.023, WindowUS: 801.993, NoisePercent: 0.5},
			{Bytes: 256 * mib, PlainUS: 1233.631, WindowUS: 1612.558, NoisePercent: 0.9},
		},
		inPlace: []Point{
			{Bytes: 1 * kib, PlainUS: 9.1, WindowUS: 4.31},
			{Bytes: 4 * kib, PlainUS: 9.38, WindowUS: 4.62},
			{Bytes: 16 * kib, PlainUS: 10.5, WindowUS: 4.97},
			{Bytes: 64 * kib, PlainUS: 10.9, WindowUS: 9.9},
			{Bytes: 256 * kib, PlainUS: 11.3, WindowUS: 14.4},
			{Bytes: 1 * mib, PlainUS: 17.8, WindowUS: 20.1},
			{Bytes: 4 * mib, PlainUS: 39.9, WindowUS: 36.7},
			{Bytes: 16 * mib, PlainUS: 94.9, WindowUS: 105.0},
			{Bytes: 64 * mib, PlainUS: 327.0, WindowUS: 402.0},
			{Bytes: 256 * mib, PlainUS: 1190.0, WindowUS: 1530.0},
		},
	},
	{
		operation: "AllGather", ranks: 4,
		outOfPlace: []Point{
			{Bytes: 1 * kib, PlainUS: 6.908, WindowUS: 3.738, NoisePercent: 0.5},
			{Bytes: 2 * kib, PlainUS: 6.96, WindowUS: 3.883, NoisePercent: 0.4},
			{Bytes: 4 * kib, PlainUS: 7.045, WindowUS: 3.937, NoisePercent: 0.5},
			{Bytes: 8 * kib, PlainUS: 7.33, WindowUS: 4.085, NoisePercent: 0.2},
			{Bytes: 16 * kib, PlainUS: 8.3, WindowUS: 4.166, NoisePercent: 0.2},
			{Bytes: 32 * kib, PlainUS: 8.454, WindowUS: 4.383, NoisePercent: 0.3},
			{Bytes: 64 * kib, PlainUS: 8.648, WindowUS: 4.519, NoisePercent: 0.4},
			{Bytes: 128 * kib, PlainUS: 8.762, WindowUS: 4.952, NoisePercent: 0.5},
			{Bytes: 256 * kib, PlainUS: 8.902, WindowUS: 7.779, NoisePercent: 0.3},
			{Bytes: 512 * kib, PlainUS: 10.532, WindowUS: 8.643, NoisePercent: 0.5},
			{Bytes: 1 * mib, PlainUS: 13.152, WindowUS: 8.927, NoisePercent: 0.2},
			{Bytes: 2 * mib, PlainUS: 18.891, WindowUS: 11.75, NoisePercent: 0.5},
			{Bytes: 4 * mib, PlainUS: 35.721, WindowUS: 16.626, NoisePercent: 0.4},
			{Bytes: 8 * mib, PlainUS: 43.498, WindowUS: 26.242, NoisePercent: 0.3},
			{Bytes: 16 * mib, PlainUS: 60.482, WindowUS: 44.509, NoisePercent: 0.4},
			{Bytes: 32 * mib, PlainUS: 99.203, WindowUS: 82.017, NoisePercent: 0.5},
			{Bytes: 64 * mib, PlainUS: 174.083, WindowUS: 158.642, NoisePercent: 0.4},
			{Bytes: 128 * mib, PlainUS: 328.675, WindowUS: 309.905, NoisePercent: 0.8},
			{Bytes: 256 * mib, PlainUS: 618.918, WindowUS: 629.047, NoisePercent: 0.4},
		},
		inPlace: []Point{
			{Bytes: 1 * kib, PlainUS: 6.74, WindowUS: 3.69},
			{Bytes: 4 * kib, PlainUS: 6.89, WindowUS: 3.85},
			{Bytes: 16 * kib, PlainUS: 7.88, WindowUS: 4.15},
			{Bytes: 64 * kib, PlainUS: 8.23, WindowUS: 4.51},
			{Bytes: 256 * kib, PlainUS: 8.61, WindowUS: 7.24},
			{Bytes: 1 * mib, PlainUS: 12.4, WindowUS: 8.15},
			{Bytes: 4 * mib, PlainUS: 33.9, WindowUS: 16.2},
			{Bytes: 16 * mib, PlainUS: 56.3, WindowUS: 47.2},
			{Bytes: 64 * mib, PlainUS: 167.0, WindowUS: 175.0},
			{Bytes: 256 * mib, PlainUS: 604.0, WindowUS: 672.0},
		},
	},
	{
		operation: "ReduceScatter", ranks: 4,
		outOfPlace: []Point{
			{Bytes: 1 * kib, PlainUS: 9.317, WindowUS: 4.131, NoisePercent: 0.5},
			{Bytes: 2 * kib, PlainUS: 6.952, WindowUS: 4.338, NoisePercent: 0.4},
			{Bytes: 4 * kib, PlainUS: 7.075, WindowUS: 4.477, NoisePercent: 0.7},
			{Bytes: 8 * kib, PlainUS: 7.3, WindowUS: 4.626, NoisePercent: 0.5},
			{Bytes: 16 * kib, PlainUS: 7.69, WindowUS: 4.704, NoisePercent: 0.7},
			{Bytes: 32 * kib, PlainUS: 7.837, WindowUS: 4.931, NoisePercent: 0.4},
			{Bytes: 64 * kib, PlainUS: 8, WindowUS: 5.078, NoisePercent: 0.7},
			{Bytes: 128 * kib, PlainUS: 8.047, WindowUS: 5.548, NoisePercent: 0.8},
			{Bytes: 256 * kib, PlainUS: 8.335, WindowUS: 14.177, NoisePercent: 0.3},
			{Bytes: 512 * kib, PlainUS: 9.389, WindowUS: 18.477, NoisePercent: 0.4},
			{Bytes: 1 * mib, PlainUS: 11.458, WindowUS: 9.719, NoisePercent: 0.4},
			{Bytes: 2 * mib, PlainUS: 16.979, WindowUS: 13.721, NoisePercent: 0.5},
			{Bytes: 4 * mib, PlainUS: 33.304, WindowUS: 26.825, NoisePercent: 0.3},
			{Bytes: 8 * mib, PlainUS: 39.889, WindowUS: 37.98, NoisePercent: 0.4},
			{Bytes: 16 * mib, PlainUS: 58.36, WindowUS: 68.513, NoisePercent: 0.5},
			{Bytes: 32 * mib, PlainUS: 105.832, WindowUS: 122.578, NoisePercent: 0.5},
			{Bytes: 64 * mib, PlainUS: 191.883, WindowUS: 264.909, NoisePercent: 0.5},
			{Bytes: 128 * mib, PlainUS: 364.064, WindowUS: 515.395, NoisePercent: 0.6},
			{Bytes: 256 * mib, PlainUS: 698.27, WindowUS: 1004.503, NoisePercent: 0.4},
		},
		inPlace: []Point{
			{Bytes: 1 * kib, PlainUS: 6.71, WindowUS: 3.99},
			{Bytes: 4 * kib, PlainUS: 6.96, WindowUS: 4.49},
			{Bytes: 16 * kib, PlainUS: 7.55, WindowUS: 4.69},
			{Bytes: 64 * kib, PlainUS: 7.82, WindowUS: 5.07},
			{Bytes: 256 * kib, PlainUS: 8.25, WindowUS: 14.0},
			{Bytes: 1 * mib, PlainUS: 11.3, WindowUS: 9.61},
			{Bytes: 4 * mib, PlainUS: 32.8, WindowUS: 26.3},
			{Bytes: 16 * mib, PlainUS: 57.4, WindowUS: 67.0},
			{Bytes: 64 * mib, PlainUS: 189.0, WindowUS: 264.0},
			{Bytes: 256 * mib, PlainUS: 673.0, WindowUS: 957.0},
		},
	},
}
