package live

import (
	"strings"
	"testing"
)

// The metrics of a rank are text. They contain series: lines with a name, labels and a value. This
// series has two labels and the value 1.5:
//
//	symmem_wait_seconds{rank="2",awaited_rank="3"} 1.5

// readSeries returns the series with the given name in the metrics of a rank. It fails the test if
// the server does not return metrics.
func readSeries(t *testing.T, s Snapshot, name string) []string {
	t.Helper()
	w := get(t, metricsPath, s)
	if w.Code != 200 {
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

// checkSeries checks that the metrics contain exactly one series with the given name, and that it
// has the given value and labels.
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

// TestMetrics checks the metrics of a snapshot from example. It describes one of four ranks, with
// one group and one pool. The rank has waited 1.5 s for rank 3, and the group has failed. Of its 9
// calls, all AllReduce, 2 were timed and took 0.5 s in total. The latest timed call reduced 1 MiB
// in 1 ms.
//
// The names of series that begin with nccl are those of NCCL Inspector.
func TestMetrics(t *testing.T) {
	t.Setenv("SLURM_JOB_ID", "42") // the metrics have it as a label
	s := example(2)
	checkSeries(t, s, "symmem_up", "1", `rank="2"`)
	checkSeries(t, s, "symmem_wait_seconds", "1.5", `rank="2"`, `awaited_rank="3"`)
	checkSeries(t, s, "symmem_group_failed", "1")
	checkSeries(t, s, "symmem_collectives_total", "9", `path="window"`)
	checkSeries(t, s, "symmem_calls_total", "9", `collective="AllReduce"`, `message_size="1-2MB"`)
	checkSeries(t, s, "symmem_run_seconds_sum", "0.5")
	checkSeries(t, s, "symmem_submit_seconds_count", "2")
	checkSeries(t, s, "nccl_collective_exec_time_microseconds", "1000", `slurm_job_id="42"`,
		`n_nodes="1"`, `nranks="4"`, `algo_proto="symmem_window"`, `timing_source="host"`)
	// The bus bandwidth of AllReduce on 4 ranks is 2*(4-1)/4 times 1 MiB in 1 ms, in GB/s.
	checkSeries(t, s, "nccl_bus_bandwidth_gbs", "1.572864", `collective="AllReduce"`)
	const poolSizes = 7 // series of a pool, which differ in a label
	if got := readSeries(t, s, "symmem_pool_bytes"); len(got) != poolSizes {
		t.Errorf("symmem_pool_bytes = %q; want %d series", got, poolSizes)
	}

	s.GPU = 2 // before, the rank had no GPU
	checkSeries(t, s, "nccl_bus_bandwidth_gbs", "1.572864", `gpu="GPU2"`, `timing_source="gpu"`)
}

// TestUntimedRunsHaveNoBandwidth uses a group in which only the submissions of calls are timed, but
// not their runs. There must be no series about the time of runs.
func TestUntimedRunsHaveNoBandwidth(t *testing.T) {
	s := example(0)
	s.Groups[0].Calls[0].Run = nil
	for _, name := range []string{"nccl_bus_bandwidth_gbs", "nccl_collective_exec_time_microseconds"} {
		if got := readSeries(t, s, name); len(got) > 0 {
			t.Errorf("%s = %q; want no series, because only submissions are timed", name, got)
		}
	}
}

// TestRankWithErrorIsDown uses a rank that has ended. It must be reported as down, without series
// about its state.
func TestRankWithErrorIsDown(t *testing.T) {
	s := example(1)
	s.Error = ErrorEnded
	checkSeries(t, s, "symmem_up", "0")
	if got := readSeries(t, s, "symmem_windows"); len(got) > 0 {
		t.Errorf("symmem_windows = %q; want no series of a rank that has ended", got)
	}
}

// TestNamesMayRepeat uses a failed group and a pool that have the same names as their successors,
// and a wait that is listed twice. The metrics must contain each name once, with the successor's
// values, because Prometheus rejects the whole scrape if two series have the same labels.
func TestNamesMayRepeat(t *testing.T) {
	s := example(1)
	successor := s.Groups[0]
	successor.State = "open"
	successor.Windows = 3
	s.Groups = append(s.Groups, successor)
	// hostile is the name of the first pool's group, too.
	s.Pools = append(s.Pools, Pool{Domain: hostile, PoolStats: PoolStats{Segments: 5}})
	s.Waits = append(s.Waits, s.Waits...)
	checkSeries(t, s, "symmem_wait_seconds", "1.5")
	checkSeries(t, s, "symmem_group_failed", "0")
	checkSeries(t, s, "symmem_windows", "3")
	checkSeries(t, s, "symmem_pool_segments", "5")
}

// TestBusyPoolHasNoSizes uses a pool that is busy: a waiting call uses it, so its sizes cannot be
// read. There must be no series of its sizes.
func TestBusyPoolHasNoSizes(t *testing.T) {
	s := example(1)
	s.Pools[0].Busy = true
	if got := readSeries(t, s, "symmem_pool_bytes"); len(got) > 0 {
		t.Errorf("symmem_pool_bytes = %q; want no series of a busy pool", got)
	}
}

// TestBusFactor checks the factors of operations on four ranks. A factor turns the bandwidth of a
// call into that of a rank's link to the others. NCCL's tests use the same factors.
func TestBusFactor(t *testing.T) {
	const ranks = 4
	const shareOfOthers = 0.75 // (4-1)/4
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

	_, ok := busFactor("Barrier", ranks)
	if ok {
		t.Errorf("busFactor(Barrier, %d) returned true; want false, because a barrier has no bytes",
			ranks)
	}
}
