package tcp

import (
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"symmem/internal/netlab"
)

var (
	faultsFlag = flag.Int("faults", 6, "number of random network faults")
	ranksFlag  = flag.Int("machine-ranks", 2, "ranks per machine in tests with random network faults")
	seedFlag   = flag.Uint64("fault-seed", 43, "seed for random network faults")
)

// faultCounts counts the faults in a test by kind.
type faultCounts struct {
	mu     sync.Mutex
	counts map[string]int // guarded by mu
}

func (f *faultCounts) add(kind string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.counts[kind]++
}

// These two kinds count clusters, not faults. A cluster is not judged if the host was too busy.
const (
	notJudged = "clusters not judged"
	failed    = "clusters failed"
)

// check limits the clusters that were not judged, because they can hide defects.
func (f *faultCounts) check(t *testing.T, clusters int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if n := f.counts[notJudged]; n > 1 && n > clusters/clustersPerUnjudged {
		t.Errorf("%d of %d clusters were not judged; want at most one in %d: repeat the test on a less "+
			"busy host, or with a smaller -test.parallel", n, clusters, clustersPerUnjudged)
	}
}

// One in clustersPerUnjudged clusters may be left unjudged.
const clustersPerUnjudged = 10

func (f *faultCounts) summary() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	sum, text := 0, ""
	for _, kind := range slices.Sorted(maps.Keys(f.counts)) {
		if kind != notJudged && kind != failed {
			sum += f.counts[kind]
		}
		text += fmt.Sprintf("; %d %s", f.counts[kind], kind)
	}
	return fmt.Sprintf("%d faults%s", sum, text)
}

// Each random cluster suffers several faults that heal, and then one that does not.
func TestRandomNetworkFaults(t *testing.T) {
	counts := &faultCounts{counts: map[string]int{}}
	planned, clusters := 0, 0
	t.Cleanup(func() {
		t.Logf("-fault-seed=%d: %s", *seedFlag, counts.summary())
		counts.check(t, clusters)
	})
	t.Parallel()
	for number := uint64(0); planned < *faultsFlag; number++ {
		clusters++
		r := rand.New(rand.NewPCG(*seedFlag, number))
		healingFaultCount := r.IntN(4)
		planned += healingFaultCount + 1
		t.Run(fmt.Sprintf("cluster %d", number), func(t *testing.T) {
			t.Parallel()
			runRandomCluster(t, r, healingFaultCount, counts)
		})
	}
}

// runRandomCluster draws all random choices from r.
func runRandomCluster(t *testing.T, r *rand.Rand, healingFaultCount int, counts *faultCounts) {
	cfg := netlab.Config{
		Machines: 2 + r.IntN(7), Interfaces: 1 + r.IntN(2), IPv6: r.IntN(2) == 0, Seed: r.Uint64(),
		ClockStep: time.Duration(r.IntN(10_000)) * time.Second,
	}
	link := netlab.Link{
		MinDelay: 100 * time.Microsecond, Loss: float64(r.IntN(2)) / 100,
		MaxDelay: []time.Duration{
			200 * time.Microsecond, 5 * time.Millisecond, 50 * time.Millisecond,
		}[r.IntN(3)],
	}
	t.Logf("%d machines with %d ranks, %+v, link %+v", cfg.Machines, *ranksFlag, cfg, link)
	c := newCluster(t, cfg, *ranksFlag, link, machineRank{
		Timeout: hangTimeout, Pause: time.Duration(cfg.Machines**ranksFlag) * 5 * time.Millisecond,
	})
	t.Cleanup(func() {
		if t.Skipped() {
			counts.add(notJudged)
		}
		if t.Failed() {
			counts.add(failed)
		}
	})
	c.awaitAll(eventNamed(eventJoined))
	for range healingFaultCount {
		c.injectHealingFault(r, link, counts)
	}
	c.awaitRounds()
	c.injectLastFault(r, counts)
}

// injectHealingFault checks that all ranks continue.
func (c *cluster) injectHealingFault(r *rand.Rand, link netlab.Link, counts *faultCounts) {
	c.t.Helper()
	length := time.Duration(r.Int64N(int64(healedPartition)))
	a := r.IntN(len(c.lab.Machines))
	b := (a + 1 + r.IntN(len(c.lab.Machines)-1)) % len(c.lab.Machines)
	kind := []string{
		"healed cuts of a machine", "healed cuts of a link", "bursts of loss", "bursts of delay",
	}[r.IntN(4)]
	c.t.Logf("%s for %v: machine %d (and %d)", kind, length, a, b)
	switch kind {
	case "healed cuts of a machine":
		c.lab.Isolate(a, netlab.Link{Cut: true})
	case "healed cuts of a link":
		c.lab.Set(a, b, netlab.Link{Cut: true})
	case "bursts of loss":
		c.lab.Isolate(a, netlab.Link{Loss: 0.2, MaxDelay: link.MaxDelay})
	case "bursts of delay":
		c.lab.Isolate(a, netlab.Link{MaxDelay: 300 * time.Millisecond})
	}
	healed := make(chan struct{})
	time.AfterFunc(length, func() { c.lab.SetAll(link); close(healed) })
	<-healed
	c.awaitRounds()
	counts.add(kind)
}

// injectLastFault checks the reports of all survivors.
func (c *cluster) injectLastFault(r *rand.Rand, counts *faultCounts) {
	c.t.Helper()
	machine := r.IntN(len(c.lab.Machines))
	kind := []string{
		"silent machines", "killed machines", "partitions", "killed ranks", "orderly ends",
	}[r.IntN(5)]
	c.t.Logf("%s: machine %d", kind, machine)
	killedRank, begin := -1, time.Now()
	switch kind {
	case "silent machines":
		c.lab.Isolate(machine, netlab.Link{Cut: true})
		time.AfterFunc(time.Duration(r.Int64N(int64(time.Second))), func() { c.kill(machine) })
	case "killed machines":
		c.kill(machine)
	case "partitions":
		c.lab.Isolate(machine, netlab.Link{Cut: true})
	case "killed ranks":
		killedRank = machine*c.local + r.IntN(c.local)
		_ = c.ranks[killedRank].command.Process.Kill()
	case "orderly ends":
		c.finish()
		counts.add(kind)
		return
	}
	for other := range c.lab.Machines {
		for _, rank := range c.ranksOf(other) {
			switch {
			case other != machine && (kind == "killed machines" || killedRank >= 0),
				killedRank >= 0 && rank != killedRank:
				e, ok := c.checkReport(rank, begin, machine)
				if ok && killedRank >= 0 && !slices.Equal(e.Ranks, []int{killedRank}) {
					c.t.Errorf("rank %d reports ranks %v; want rank %d: %s", rank, e.Ranks, killedRank, e.Text)
				}
			}
		}
		if kind == "partitions" && other == machine {
			c.checkLost(machine, begin, c.otherMachines(machine)...)
		} else if other != machine && (kind == "partitions" || kind == "silent machines") {
			c.checkLost(other, begin, machine)
		}
	}
	counts.add(kind)
}

func (c *cluster) otherMachines(machine int) (others []int) {
	for m := range c.lab.Machines {
		if m != machine {
			others = append(others, m)
		}
	}
	return others
}
