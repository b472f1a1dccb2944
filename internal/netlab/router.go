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
	// MinDelay and MaxDelay bound the delay of packets. Each packet has a random delay, so packets
	// may overtake each other.
	MinDelay, MaxDelay time.Duration
	// Loss is the probability that a packet is dropped.
	Loss float64
	// Cut makes the link drop all packets, without an error for the sender.
	Cut bool
}

// port is the router's end of a machine's interface. The interface is a TUN device, whose packets
// the router reads and writes as a file.
type port struct {
	machine int      // index of the machine
	device  *os.File // the TUN device
	isCut   bool     // all packets are dropped; guarded by router.mu
}

// router forwards packets between the interfaces of all machines.
type router struct {
	tasks sync.WaitGroup // goroutines, and packets that will be forwarded later
	// longestStall is the longest time, in nanoseconds, for which the host did not run this
	// process.
	longestStall atomic.Int64

	mu           sync.Mutex           // guards the fields below
	random       *rand.Rand           // chooses delays and losses
	ports        map[netip.Addr]*port // by address of the interface, and by public address
	links        map[[2]int]Link      // by sending and receiving machine
	translations map[int]addressPair  // by machine behind NAT (see TranslateAddress)
}

// newRouter returns a router without ports. The seed determines the delays and losses.
func newRouter(seed uint64) *router {
	const stream = 0 // PCG needs two numbers as its seed.
	return &router{
		random:       rand.New(rand.NewPCG(seed, stream)),
		ports:        map[netip.Addr]*port{},
		links:        map[[2]int]Link{},
		translations: map[int]addressPair{},
	}
}

// attachPort connects a port to the router. It starts to forward packets from the port's device,
// until the device is closed. The router sends packets to the addresses to this port.
func (r *router) attachPort(p *port, addresses []netip.Addr) {
	r.mu.Lock()
	for _, a := range addresses {
		r.ports[a] = p
	}

	r.mu.Unlock()
	r.tasks.Go(func() {
		for {
			packet := make([]byte, maxPacket)
			n, err := p.device.Read(packet) // reads exactly one packet
			if err != nil {
				return
			}

			r.forward(p, packet[:n])
		}
	})
}

// forward writes a packet to the device of its destination, after the delay of the link. It returns
// at once and takes ownership of packet.
func (r *router) forward(src *port, packet []byte) {
	dst, delay, isKept := r.routePacket(src, packet)
	if !isKept {
		return
	}

	if delay <= 0 {
		_, _ = dst.device.Write(packet) // fails if the device is down
		return
	}

	r.tasks.Add(1)
	due := time.Now().Add(delay)
	time.AfterFunc(delay, func() {
		defer r.tasks.Done()
		r.recordStall(time.Since(due))
		_, _ = dst.device.Write(packet)
	})
}

// watchStalls records how long the host did not run this process, until stop is closed. It notices
// this when a tick of its timer comes too late.
func (r *router) watchStalls(stop <-chan struct{}) {
	const interval = 50 * time.Millisecond
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		start := time.Now()
		select {
		case <-ticker.C:
			r.recordStall(time.Since(start) - interval)
		case <-stop:
			return
		}
	}
}

// recordStall sets longestStall to stall if stall is longer.
func (r *router) recordStall(stall time.Duration) {
	for {
		longest := r.longestStall.Load()
		if int64(stall) <= longest {
			return
		}

		isSet := r.longestStall.CompareAndSwap(longest, int64(stall))
		if isSet {
			return
		}

		// Another goroutine has changed longestStall. Compare again.
	}
}

// routePacket translates the addresses of a packet. It returns the port to which the packet must be
// forwarded, and the delay. isKept is false if the packet must be dropped.
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

// setLink sets the properties of the link from machine src to machine dst.
func (r *router) setLink(src, dst int, link Link) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.links[[2]int{src, dst}] = link
}
