package netlab

import (
	"math/rand/v2"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// Link describes how packets travel from one machine to another. The zero value is a perfect link.
type Link struct {
	// MinDelay and MaxDelay bound the random delay of each packet. If they differ, packets may
	// overtake each other.
	MinDelay, MaxDelay time.Duration
	// Loss is the probability that a packet is dropped.
	Loss float64
	// Cut makes the link drop all packets. The sender gets no error.
	Cut bool
}

// port connects the router to a TUN device.
type port struct {
	machine int // index of the machine
	device  *os.File
	cut     bool // whether to drop all packets; guarded by router.mu
}

type router struct {
	mu     sync.Mutex
	random *rand.Rand           // guarded by mu
	ports  map[netip.Addr]*port // by address; guarded by mu
	links  map[[2]int]Link      // by sender and receiver; guarded by mu
	nats   map[int]translation  // by machine behind NAT; guarded by mu
	tasks  sync.WaitGroup       // goroutines and packets in transit
	// longestStall is the longest time, in nanoseconds, for which the host did not run this
	// process.
	longestStall atomic.Int64
}

func newRouter(seed uint64) *router {
	return &router{
		random: rand.New(rand.NewPCG(seed, 0)),
		ports:  map[netip.Addr]*port{}, links: map[[2]int]Link{}, nats: map[int]translation{},
	}
}

// attach connects a device with the given addresses to the router, and forwards packets from the
// device until the device is closed.
func (r *router) attach(p *port, addresses []netip.Addr) {
	r.mu.Lock()
	for _, a := range addresses {
		r.ports[a] = p
	}
	r.mu.Unlock()
	r.tasks.Go(func() {
		for {
			packet := make([]byte, maxPacket)
			n, err := p.device.Read(packet)
			if err != nil {
				return
			}
			r.forward(p, packet[:n])
		}
	})
}

// forward sends a packet to the device with the destination address, after the delay of the link.
func (r *router) forward(src *port, packet []byte) {
	dst, delay, ok := r.route(src, packet)
	switch {
	case !ok:
	case delay <= 0:
		_, _ = dst.device.Write(packet) // fails if the device is down
	default:
		r.tasks.Add(1)
		due := time.Now().Add(delay)
		time.AfterFunc(delay, func() {
			defer r.tasks.Done()
			r.noteStall(time.Since(due))
			_, _ = dst.device.Write(packet)
		})
	}
}

// watch detects when the host did not run this process for some time. It returns when stop is
// closed.
func (r *router) watch(stop <-chan struct{}) {
	const interval = 50 * time.Millisecond
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for last := time.Now(); ; last = time.Now() {
		select {
		case <-ticker.C:
			r.noteStall(time.Since(last) - interval)
		case <-stop:
			return
		}
	}
}

// noteStall records that the host did not run this process for the given time.
func (r *router) noteStall(stall time.Duration) {
	for {
		longest := r.longestStall.Load()
		if int64(stall) <= longest || r.longestStall.CompareAndSwap(longest, int64(stall)) {
			return
		}
	}
}

// route returns the destination and the delay of a packet. ok is false if the packet is dropped.
func (r *router) route(src *port, packet []byte) (dst *port, delay time.Duration, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.translate(src.machine, packet)
	destination, ok := destinationOf(packet)
	if dst = r.ports[destination]; !ok || dst == nil {
		return nil, 0, false
	}
	link := r.links[[2]int{src.machine, dst.machine}]
	if src.cut || dst.cut || link.Cut || link.Loss > 0 && r.random.Float64() < link.Loss {
		return nil, 0, false
	}
	delay = link.MinDelay
	if spread := link.MaxDelay - link.MinDelay; spread > 0 {
		delay += time.Duration(r.random.Int64N(int64(spread)))
	}
	return dst, delay, true
}

func (r *router) set(src, dst int, link Link) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.links[[2]int{src, dst}] = link
}
