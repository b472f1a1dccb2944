package host

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"sync"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
	"symmem/driver"
)

type memStore struct {
	mu sync.Mutex
	c  *sync.Cond
	m  map[string][]byte
}

func (s *memStore) Set(_ context.Context, k string, v []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.m[k] = v
	s.c.Broadcast()
	return nil
}
func (s *memStore) Get(_ context.Context, k string) ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		if v, ok := s.m[k]; ok {
			return v, nil
		}
		s.c.Wait()
	}
}

type fileStore struct{ dir string }

func (s fileStore) p(k string) string {
	b := []byte(k)
	for i := range b {
		if b[i] == '/' {
			b[i] = '_'
		}
	}
	return s.dir + "/" + string(b)
}
func (s fileStore) Set(_ context.Context, k string, v []byte) error {
	os.WriteFile(s.p(k)+".t", v, 0o600)
	return os.Rename(s.p(k)+".t", s.p(k))
}
func (s fileStore) Get(_ context.Context, k string) ([]byte, error) {
	for {
		if b, err := os.ReadFile(s.p(k)); err == nil {
			return b, nil
		}
		time.Sleep(time.Millisecond)
	}
}

func rank(tb testing.TB, st driver.Store, r, n int, f func(d driver.Device, c driver.Communicator, s driver.Stream, a, b driver.Segment, wa, wb driver.Window)) {
	ctx := context.Background()
	d, err := Backend{}.Open(ctx, driver.Config{Rank: r, Size: n, Store: st, Timeout: 10 * time.Second})
	if err != nil {
		tb.Error(err)
		return
	}
	ranks := make([]int, n)
	for i := range ranks {
		ranks[i] = i
	}
	c, err := d.Connect(ctx, driver.GroupConfig{ID: "w", Ranks: ranks, Rank: r, Check: true})
	if err != nil {
		tb.Error(err)
		return
	}
	ar, _ := d.NewArena(1 << 30)
	a, err := ar.Map(0, 64<<20)
	if err != nil {
		tb.Error(err)
		return
	}
	b, _ := ar.Map(64<<20, 64<<20)
	wa, err := c.Register(ctx, driver.SegmentKey{Pool: 1}, a)
	if err != nil {
		tb.Error(err)
		return
	}
	wb, err := c.Register(ctx, driver.SegmentKey{Pool: 1, Ordinal: 1}, b)
	if err != nil {
		tb.Error(err)
		return
	}
	s, _ := d.NewStream()
	f(d, c, s, a, b, wa, wb)
}

func TestSmoke(t *testing.T) {
	st := &memStore{m: map[string][]byte{}}
	st.c = sync.NewCond(&st.mu)
	const n = 4
	var wg sync.WaitGroup
	for r := range n {
		wg.Go(func() {
			rank(t, st, r, n, func(d driver.Device, c driver.Communicator, s driver.Stream, a, b driver.Segment, wa, wb driver.Window) {
				in := unsafe.Slice((*float32)(pointer(a.Address())), 16<<20)
				out := unsafe.Slice((*float32)(pointer(b.Address())), 16<<20)
				for _, path := range []driver.Path{0, 1} {
					for _, cnt := range []int{0, 1, 3, 12, 13, 1000, 5000, 200001} {
						for i := range cnt {
							in[i] = float32(r + i%7)
							out[i] = -1
						}
						p, err := c.Prepare(driver.Call{Operation: driver.AllReduce, DataType: driver.Float32, Path: path, Count: int64(cnt), Send: a.Address(), Recv: b.Address(), SendWindow: wa, RecvWindow: wb, Digest: uint64(cnt)})
						if err != nil {
							t.Error(err)
							return
						}
						if err := c.Launch(s, p); err != nil {
							t.Error(err)
							return
						}
						if err := s.Synchronize(context.Background()); err != nil {
							t.Error(err)
							return
						}
						for i := range cnt {
							if out[i] != float32(n*(n-1)/2+n*(i%7)) {
								t.Errorf("path %v count %d at %d: %v", path, cnt, i, out[i])
								return
							}
						}
					}
				}
				s.Close()
				if err := c.Close(); err != nil {
					t.Error(err)
				}
				d.Close()
			})
		})
	}
	wg.Wait()
}

func TestPerf(t *testing.T) {
	if v := os.Getenv("PERF_RANK"); v != "" {
		r, _ := strconv.Atoi(v)
		n, _ := strconv.Atoi(os.Getenv("PERF_N"))
		runtime.LockOSThread()
		var set unix.CPUSet
		set.Set(r % 2)
		unix.SchedSetaffinity(0, &set)
		rank(t, fileStore{os.Getenv("PERF_DIR")}, r, n, func(d driver.Device, c driver.Communicator, s driver.Stream, a, b driver.Segment, wa, wb driver.Window) {
			in := unsafe.Slice((*float32)(pointer(a.Address())), 16<<20)
			out := unsafe.Slice((*float32)(pointer(b.Address())), 16<<20)
			for i := range in {
				in[i] = 1
				out[i] = 0
			}
			for _, op := range []driver.Operation{driver.AllReduce, driver.AllGather, driver.ReduceScatter} {
				for _, bytes := range []int64{8, 1024, 4096, 8192, 16384, 32768, 65536, 1 << 20, 16 << 20, 64 << 20} {
					cnt := bytes / 4
					if op != driver.AllReduce {
						cnt /= int64(n)
					}
					path := driver.PathWindow
					if os.Getenv("PERF_PLAIN") != "" {
						path = driver.PathPlain
					}
					p, err := c.Prepare(driver.Call{Operation: op, DataType: driver.Float32, Path: path, Count: cnt, Send: a.Address(), Recv: b.Address(), SendWindow: wa, RecvWindow: wb, Digest: uint64(cnt)})
					if err != nil {
						t.Error(err)
						return
					}
					iters := int(50_000_000 / (200 + bytes/10))
					iters = max(3, min(iters, 50000))
					best := time.Duration(1 << 60)
					for range 5 {
						start := time.Now()
						for range iters {
							if err := c.Launch(s, p); err != nil {
								t.Error(err)
								return
							}
						}
						s.Synchronize(context.Background())
						best = min(best, time.Since(start)/time.Duration(iters))
					}
					if r == 0 {
						fmt.Printf("%v %d %v\n", op, bytes, best)
					}
				}
			}
		})
		return
	}
	n := os.Getenv("PERF_N")
	if n == "" {
		t.Skip()
	}
	k, _ := strconv.Atoi(n)
	dir := t.TempDir()
	var wg sync.WaitGroup
	for r := range k {
		wg.Go(func() {
			cmd := exec.Command("/proc/self/exe", "-test.run=TestPerf$")
			cmd.Env = append(os.Environ(), "PERF_RANK="+strconv.Itoa(r), "PERF_DIR="+dir)
			cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
			cmd.Run()
		})
	}
	wg.Wait()
}
