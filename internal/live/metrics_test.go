package live

import (
	"net/http"
	"strings"
	"testing"
)

// readSeries returns the series of a rank with the given name. A series is a line such as
//
//	symmem_wait_seconds{rank="2",awaited_rank="3"} 1.5
func readSeries(t *testing.T, s Snapshot, name string) []string {
	t.Helper()
	w := get(t, metricsPath, s)
	if w.Code != http.StatusOK {
		t.Fatalf("status %d, body %q; want metrics", w.Code, w.Body)
	}

	var lines []string
	for line := range strings.Lines(w.Body.String()) {
		if strings.HasPrefix(line, name+"{") {
			lines = append(lines, strings.TrimSpace(line))
		}
	}

	return lines
}

// checkSeries expects exactly one series with the given name, and checks its value and labels.
func checkSeries(t *testing.T, s Snapshot, name, value string, labels ...string) {
	t.Helper()
	lines := readSeries(t, s, name)
	if len(lines) != 1 || !strings.HasSuffix(lines[0], "} "+value) {
		t.Errorf("%s = %q; want one series with value %s", name, lines, value)
		return
	}

	for _, label := range labels {
		if !strings.Contains(lines[0], label) {
			t.Errorf("%s = %q; want the label %s", name, lines[0], label)
		}
	}
}

func TestMetrics(t *testing.T) {
	t.Setenv("SLURM_JOB_ID", "42") // becomes the label slurm_job_id
	const rank = 2
	s := example(rank) // waits for rank 3 and has called AllReduce 9 times, among 4 ranks
	checkSeries(t, s, "symmem_up", "1", `rank="2"`)
	checkSeries(t, s, "symmem_wait_seconds", "1.5", `rank="2"`, `awaited_rank="3"`)
	checkSeries(t, s, "symmem_group_failed", "1")
	checkSeries(t, s, "symmem_collectives_total", "9", `path="window"`)
	checkSeries(t, s, "symmem_calls_total", "9", `collective="AllReduce"`, `message_size="1-2MB"`)
	checkSeries(t, s, "symmem_run_seconds_sum", "0.5")
	checkSeries(t, s, "symmem_submit_seconds_count", "2")
	checkSeries(t, s, "nccl_collective_exec_time_microseconds", "1000", `slurm_job_id="42"`,
		`n_nodes="1"`, `nranks="4"`, `algo_proto="symmem_window"`, `timing_source="host"`)
	const busBandwidthGBs = "1.572864" // bus factor 2*(4-1)/4 of AllReduce, times 1 MiB per ms
	checkSeries(t, s, "nccl_bus_bandwidth_gbs", busBandwidthGBs, `collective="AllReduce"`)
	const poolSizes = 7 // such as used and cached bytes
	if got := readSeries(t, s, "symmem_pool_bytes"); len(got) != poolSizes {
		t.Errorf("symmem_pool_bytes = %q; want %d series", got, poolSizes)
	}

	s.GPU = 2
	checkSeries(t, s, "nccl_bus_bandwidth_gbs", busBandwidthGBs, `gpu="GPU2"`, `timing_source="gpu"`)
}

func TestUntimedRunsHaveNoBandwidth(t *testing.T) {
	s := example(0)
	s.Groups[0].Calls[0].Run = nil
	for _, name := range []string{"nccl_bus_bandwidth_gbs", "nccl_collective_exec_time_microseconds"} {
		if got := readSeries(t, s, name); len(got) > 0 {
			t.Errorf("%s = %q; want no series, because only submissions are timed", name, got)
		}
	}
}

// A rank that has ended reports only symmem_up.
func TestRankWithErrorIsDown(t *testing.T) {
	s := example(1)
	s.Error = ErrorEnded
	checkSeries(t, s, "symmem_up", "0")
	if got := readSeries(t, s, "symmem_windows"); len(got) > 0 {
		t.Errorf("symmem_windows = %q; want no series of a rank that has ended", got)
	}
}

// Prometheus rejects two series with the same labels. If a group, pool or wait occurs twice, only
// the last one is reported.
func TestNamesMayRepeat(t *testing.T) {
	s := example(1)
	successor := s.Groups[0]
	successor.State = "open"
	successor.Windows = 3
	s.Groups = append(s.Groups, successor)
	successorPool := Pool{Domain: s.Pools[0].Domain, PoolStats: PoolStats{Segments: 5}}
	s.Pools = append(s.Pools, successorPool)
	s.Waits = append(s.Waits, s.Waits...)
	checkSeries(t, s, "symmem_wait_seconds", "1.5")
	checkSeries(t, s, "symmem_group_failed", "0")
	checkSeries(t, s, "symmem_windows", "3")
	checkSeries(t, s, "symmem_pool_segments", "5")
}

// The sizes of a pool cannot be read while a waiting call uses it.
func TestBusyPoolHasNoSizes(t *testing.T) {
	s := example(1)
	s.Pools[0].Busy = true
	if got := readSeries(t, s, "symmem_pool_bytes"); len(got) > 0 {
		t.Errorf("symmem_pool_bytes = %q; want no series of a busy pool", got)
	}
}

// The factors that convert the bandwidth of a call to the bandwidth of a link are those of
// nccl-tests.
func TestBusFactor(t *testing.T) {
	const ranks = 4
	const shareOfOthers = float64(ranks-1) / ranks
	for operation, want := range map[string]float64{
		"AllReduce":      2 * shareOfOthers,
		"AllGather":      shareOfOthers,
		"ReduceScatterV": shareOfOthers,
		"Broadcast":      1,
		"AllToAll":       shareOfOthers,
	} {
		got, ok := busFactor(operation, ranks)
		if got != want || !ok {
			t.Errorf("busFactor(%s, %d) = %v, %t; want %v, true", operation, ranks, got, ok, want)
		}
	}

	if _, ok := busFactor("Barrier", ranks); ok {
		t.Errorf("busFactor(Barrier, %d) returned true; want false, because a barrier has no bytes",
			ranks)
	}
}
