package symmem_test

import (
	"bufio"
	"fmt"
	"os"
	"strconv"
	"testing"

	"symmem"
)

// checkpointVariable holds the number of ranks of TestCheckpointedProcess.
const checkpointVariable = "SYMMEM_TEST_CHECKPOINT"

// TestCheckpointedProcess suspends its pools and groups, prints "ready", and waits for a line on
// its standard input. During this wait, bench/gpu/suspend.py makes a checkpoint of the process and
// restores it. The test then resumes the pools and groups and replays a graph.
func TestCheckpointedProcess(t *testing.T) {
	value, set := os.LookupEnv(checkpointVariable)
	if !set {
		t.Skipf("%s is not set; bench/gpu/suspend.py runs this test", checkpointVariable)
	}

	ranks, err := strconv.Atoi(value)
	if err != nil {
		t.Fatal(err)
	}

	all := newGate(ranks)
	runRanks(t, ranks, suspendOptions(), func(r *rank) {
		w, p := r.World(), r.pool()
		b := r.window(p, mib)
		m := b.Memory()
		r.checkSum(w, b)
		g := r.capture(func(s *symmem.Stream) {
			r.ok(w.AllReduce(r.ctx, m, m, b.Size()/4, symmem.Float32, symmem.Sum, s))
		})
		for range 2 {
			r.fill(b, 3)
			r.suspend(p, symmem.KeepContents)
			suspendGroup(r, w)
			all.wait(r)
			if r.Rank() == 0 {
				fmt.Println("ready")
				if _, err := bufio.NewReader(os.Stdin).ReadString('\n'); err != nil {
					r.failf("reading the standard input: %v", err)
				}
			}

			all.wait(r)
			resumeGroup(r, w)
			r.resume(p)
			r.checkAll(b, 3)
			r.ok(g.Launch(r.DefaultStream()))
			r.synchronize()
			r.checkAll(b, float32(3*ranks))
		}
	})
}
