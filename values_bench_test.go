package symmem_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"testing"
	"time"

	"symmem"
)

// agreeingVariable marks the second process of BenchmarkAgree. Its value is the store's address.
const agreeingVariable = "SYMMEM_TEST_AGREEING"

// The ranks of the two processes, and the value that they compare.
const (
	firstRank, secondRank = 0, 1

	agreedName  = "batch size"
	agreedValue = 8
)

// openPair opens one of two ranks, whose processes meet at the address of the store.
func openPair(number int, store string) (*symmem.Runtime, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	return symmem.Open(ctx, symmem.Options{
		Rank: number, Size: 2, Store: store, Backend: "host", Timeout: time.Minute,
	})
}

// runAgreeingRank runs this process as the second rank, and returns its exit status. The rank
// calls Agree until the first rank closes.
func runAgreeingRank() int {
	rt, err := openPair(secondRank, os.Getenv(agreeingVariable))
	for err == nil {
		err = rt.World().Agree(context.Background(), agreedName, agreedValue)
	}

	var deadlock *symmem.DeadlockError
	if errors.As(err, &deadlock) { // the first rank has left
		err = rt.Close()
	}

	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}

	return 0
}

// BenchmarkAgree compares a number between two processes. If barsVariable is set, the median over
// batches must not exceed maxMedianNs per call. The mean is not limited, because it depends on the
// load of the machine.
func BenchmarkAgree(b *testing.B) {
	store := "unix:@symmem-test-" + rand.Text()
	// The other process is this program: TestMain calls runAgreeingRank if agreeingVariable is set.
	other := exec.Command(os.Args[0])
	other.Env = append(os.Environ(), agreeingVariable+"="+store)
	other.Stderr = os.Stderr
	if err := other.Start(); err != nil {
		b.Fatal(err)
	}

	rt, err := openPair(firstRank, store)
	if err != nil {
		b.Fatal(err)
	}

	const batchCalls, maxMedianNs = 200, 500
	var batchTimes []time.Duration
	b.ReportAllocs()
	begin := time.Now()
	for n := 1; b.Loop(); n++ {
		if err := rt.World().Agree(b.Context(), agreedName, agreedValue); err != nil {
			b.Fatal(err)
		}

		if n%batchCalls == 0 {
			batchTimes = append(batchTimes, time.Since(begin))
			begin = time.Now()
		}
	}

	slices.Sort(batchTimes)
	if len(batchTimes) > 0 {
		medianNs := float64(batchTimes[len(batchTimes)/2].Nanoseconds()) / batchCalls
		b.ReportMetric(medianNs, "median-ns/op")
		if os.Getenv(barsVariable) != "" && medianNs > maxMedianNs {
			b.Errorf("the median is %.0f ns, want at most %d", medianNs, maxMedianNs)
		}
	}

	if err := rt.Close(); err != nil {
		b.Error(err)
	}

	if err := other.Wait(); err != nil { // it ends when this rank has left
		b.Error(err)
	}
}
