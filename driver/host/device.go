package host

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync/atomic"
	"time"

	"symmem/driver"
	"symmem/internal/handoff"
	"symmem/internal/ranked"
	"symmem/internal/scatter"
	"symmem/internal/sys"
)

// granularity is the unit of segment sizes: a huge page.
const granularity = sys.PageSize

// Device is one rank's share of the machine.
//
// States: open; closed. A capture in progress forbids registration on the whole device, as CUDA's
// global capture mode does.
type Device struct {
	cfg      driver.Config
	info     driver.Info
	server   *handoff.Server
	identity handoff.Token
	scatter  *scatter.Scatter
	// capturing counts the streams that record.
	capturing atomic.Int32
	// crowded is set when another rank is a goroutine of this process: then a waiting rank must
	// let the Go scheduler run it.
	crowded atomic.Bool

	mu    ranked.Mutex[deviceMu]
	peers map[int]*peer // by world rank; guarded by mu
	// closed is set by Close; guarded by mu.
	closed bool
	// ends counts the peers whose processes have ended.
	ends atomic.Uint32
}

func info() driver.Info {
	return driver.Info{
		Backend:     "host",
		Name:        fmt.Sprintf("%d processors, %s", sys.Cores(), runtime.GOARCH),
		Granularity: granularity,
		Addressable: true,
		CheckIsFree: true,
	}
}

// Info describes the device.
func (d *Device) Info() driver.Info { return d.info }

// introduce opens the hand-off server and publishes its address.
func (d *Device) introduce(ctx context.Context) error {
	if err := d.shareToken(ctx); err != nil {
		return err
	}
	var err error
	if d.server, err = handoff.Listen(d.identity); err != nil {
		return err
	}
	place, err := place()
	if err != nil {
		return err
	}
	value := d.server.Address() + " " + place
	return d.cfg.Store.Set(ctx, rankKey(d.cfg.Rank), []byte(value))
}

// shareToken makes the world's secret on rank 0 and fetches it on the others.
func (d *Device) shareToken(ctx context.Context) error {
	const key = "host/token"
	if d.cfg.Rank == 0 {
		if _, err := rand.Read(d.identity[:]); err != nil {
			return fmt.Errorf("making the world's token: %w", err)
		}
		return d.cfg.Store.Set(ctx, key, d.identity[:])
	}
	begin := time.Now()
	got, err := d.cfg.Store.Get(ctx, key)
	if errors.Is(context.Cause(ctx), context.DeadlineExceeded) && err != nil {
		return &driver.AbsentError{
			Doing: "fetching the world's token", Ranks: []int{0}, Err: err,
			Waited: time.Since(begin).Round(time.Millisecond),
		}
	}
	if err != nil {
		return fmt.Errorf("fetching the world's token from rank 0: %w", err)
	}
	if copy(d.identity[:], got) != len(d.identity) {
		return fmt.Errorf("the world's token has %d bytes: the store is not symmem's", len(got))
	}
	return nil
}

func rankKey(rank int) string { return fmt.Sprintf("host/rank/%d", rank) }

// place names what ranks must have in common to share memory by descriptors.
func place() (string, error) {
	boot, err := sys.BootID()
	if err != nil {
		return "", err
	}
	namespace, err := sys.Namespace()
	if err != nil {
		return "", err
	}
	return boot + " " + namespace, nil
}

// peerOf connects to another rank, once.
func (d *Device) peerOf(ctx context.Context, rank int) (*peer, error) {
	d.mu.Lock()
	p := d.peers[rank]
	d.mu.Unlock()
	if p != nil {
		return p, nil
	}
	p, err := d.dial(ctx, rank)
	if err != nil {
		return nil, fmt.Errorf("connecting to rank %d: %w", rank, err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if first := d.peers[rank]; first != nil {
		return first, p.close()
	}
	if d.peers == nil {
		d.peers = map[int]*peer{}
	}
	d.peers[rank] = p
	return p, nil
}

func (d *Device) dial(ctx context.Context, rank int) (*peer, error) {
	value, err := d.cfg.Store.Get(ctx, rankKey(rank))
	if err != nil {
		return nil, err
	}
	address, theirs, _ := strings.Cut(string(value), " ")
	ours, err := place()
	if err != nil {
		return nil, err
	}
	if theirs != ours {
		return nil, errors.New("it is on another machine or in another container: " +
			"the host backend shares memory of one machine only")
	}
	h, err := handoff.Dial(ctx, address, d.identity)
	if err != nil {
		return nil, goneError(rank, "connecting", err)
	}
	if h.PID() == os.Getpid() {
		d.crowded.Store(true)
	}
	return newPeer(rank, h, &d.ends), nil
}

// Close gives everything back.
func (d *Device) Close() error {
	var errs []error
	d.mu.Lock()
	for _, p := range d.peers {
		errs = append(errs, p.close())
	}
	d.peers = nil
	first := !d.closed
	d.closed = true
	d.mu.Unlock()
	if d.server != nil && first {
		errs = append(errs, d.server.Close())
	}
	return errors.Join(errs...)
}

// yield lets other ranks run: those of this process or those of others.
func (d *Device) yield() {
	if d.crowded.Load() {
		runtime.Gosched()
		return
	}
	sys.Yield()
}
