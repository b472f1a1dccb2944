package symmem_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"symmem"
	"symmem/internal/sys/systest"
)

// aloneVariable makes a process a rank that sees its own GPU alone; it is the number of that GPU.
const aloneVariable = "SYMMEM_TEST_ALONE"

// runIsolatedRank is the main function of such a rank: it adds something up and says on which path
// and why.
func runIsolatedRank() int {
	if err := computeAlone(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func computeAlone(ctx context.Context) error {
	number, err := strconv.Atoi(os.Getenv(aloneVariable))
	if err != nil {
		return err
	}
	rt, err := symmem.Open(ctx, withBackend(symmem.Options{
		Rank: number, Size: 2, Store: os.Getenv(storeVariable), Path: symmem.PathDirect,
		Timeout: time.Minute,
	}))
	if err != nil {
		return err
	}
	defer rt.Close()
	p, err := rt.NewPool(symmem.PoolOptions{Domain: rt.World(), FirstSegment: 2 * mib})
	if err != nil {
		return err
	}
	b, err := p.Alloc(4096)
	if err != nil {
		return err
	}
	m := b.Memory()
	e, err := rt.World().Explain(symmem.OpAllReduce, m, m, 1024, symmem.Float32)
	if err != nil {
		return err
	}
	if err := symmetricSum(ctx, rt, rt.World()); err != nil {
		return err
	}
	if n := rt.World().Stats().Paths["direct"]; n != 0 {
		return fmt.Errorf("%d collectives went direct", n)
	}
	_, why, _ := strings.Cut(e.Why, "; not direct: ")
	fmt.Println(why)
	return nil
}

// TestIsolatedGPUsExplainMissingDirectPath starts ranks as some launchers do. They
// cannot know how their GPUs are joined; all else works.
func TestIsolatedGPUsExplainMissingDirectPath(t *testing.T) {
	runRanks(t, 2, symmem.Options{}, func(r *rank) {
		if r.Device().Addressable {
			r.skip("there are no GPUs to be seen", symmem.ErrUnsupported)
		}
	})
	seen := []string{"0", "1"}
	if all := os.Getenv("CUDA_VISIBLE_DEVICES"); all != "" {
		seen = strings.Split(all, ",")
	}
	store := "unix:@symmem-test-" + rand.Text()
	var processes []*exec.Cmd
	for number := range 2 {
		c := systest.Command(t, systest.Patience, os.Args[0])
		c.Env = append(os.Environ(), storeVariable+"="+store,
			aloneVariable+"="+strconv.Itoa(number), "CUDA_VISIBLE_DEVICES="+seen[number])
		out := &bytes.Buffer{}
		c.Stdout, c.Stderr = out, out
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		processes = append(processes, c)
	}
	var report []string
	for number, c := range processes {
		err := c.Wait()
		report = append(report, c.Stdout.(*bytes.Buffer).String())
		if err != nil || !strings.Contains(report[number], "this process does not see GPU") {
			t.Errorf("rank %d: %v: %s", number, err, report[number])
		}
	}
	if len(slices.Compact(report)) != 1 {
		t.Errorf("the ranks have different reasons: %q", report)
	}
}
