package netlab

import (
	"math/rand/v2"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// Link describes how packets travel from one machine to another. The zero value neither delays nor
// drops packets.
type Link struct {
	// MinDelay and MaxDelay bound the random delay of packets, which may overtake each other.
	MinDelay, MaxDelay time.Duration
	// Loss is the probability that a packet is dropped.
	Loss float64
	// Cut makes the link drop all packets, without an error for the sender.
	Cut bool
}

// port is the router's end of a machine's interface.
type port struct {
	machine int      // index of the machine
	device  *os.File // TUN device, from which the router reads the packets of the machine
	isCut   bool     // all packets are dropped; guarded by router.mu
}

// router forwards packets between the interfaces of all machines.
type router struct {
	tasks sync.WaitGroup // goroutines and delayed packets
	// longestStall is the longest time, in nanoseconds, for which the host did not run this
	// process.
	longestStall atomic.Int64

	mu           sync.Mutex // guards the fields below
	random       *rand.Rand
	ports        map[netip.Addr]*port // by address of the interface, and by public address
	links        map[[2]int]Link      // by sending and receiving machine
	translations map[int]addressPair  // by machine behind NAT
}

func newRouter(seed uint64) *router {
	return &router{
		random: rand.New(rand.NewPCG(seed, 0)),
		ports:  map[netip.Addr]*port{}, links: map[[2]int]Link{}, translations: map[int]addressPair{},
	}
}

// attachPort forwards packets from a device until the device is closed.
func (r *router) attachPort(p *port, addresses []netip.Addr) {
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

// forward writes a packet to the device of its destination, after the delay of the link.
func (r *router) forward(src *port, packet []byte) {
	dst, delay, isKept := r.routePacket(src, packet)
	switch {
	case !isKept:
	case delay <= 0:
		_, _ = dst.device.Write(packet) // fails if the device is down
	default:
		r.tasks.Add(1)
		due := time.Now().Add(delay)
		time.AfterFunc(delay, func() {
			defer r.tasks.Done()
			r.recordStall(time.Since(due))
			_, _ = dst.device.Write(packet)
		})
	}
}

// watchStalls records how long the host did not run this process, until stop is closed.
func (r *router) watchStalls(stop <-chan struct{}) {
	const interval = 50 * time.Millisecond
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for last := time.Now(); ; last = time.Now() {
		select {
		case <-ticker.C:
			r.recordStall(time.Since(last) - interval)
		case <-stop:
			return
		}
	}
}

// recordStall sets longestStall to stall if it is longer.
func (r *router) recordStall(stall time.Duration) {
	for {
		longest := r.longestStall.Load()
		if int64(stall) <= longest || r.longestStall.CompareAndSwap(longest, int64(stall)) {
			return
		}
	}
}

// routePacket translates the addresses of a packet and returns the port and the delay with which
// it must be forwarded. isKept is false if the packet must be dropped.
func (r *router) routePacket(
	src *port, packet []byte,
) (dst *port, delay time.Duration, isKept bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.translate(src.machine, packet)
	destination, isValid := destinationOf(packet)
	dst = r.ports[destination]
	if !isValid || dst == nil {
		return nil, 0, false
	}
	link := r.links[[2]int{src.machine, dst.machine}]
	if src.isCut || dst.isCut || link.Cut {
		return nil, 0, false
	}
	if link.Loss > 0 && r.random.Float64() < link.Loss {
		return nil, 0, false
	}
	delay = link.MinDelay
	if delayRange := link.MaxDelay - link.MinDelay; delayRange > 0 {
		delay += time.Duration(r.random.Int64N(int64(delayRange)))
	}
	return dst, delay, true
}

func (r *router) setLink(src, dst int, link Link) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.links[[2]int{src, dst}] = link
}
