package doctor

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"symmem/internal/cuda"
)

// Links describes the connections between GPUs.
type Links struct {
	// ActiveNVLinks contains the number of active NVLinks of each GPU. It is nil if unknown.
	ActiveNVLinks []int `json:"nvlinks_up"`
	// Pairs lists all ordered pairs of GPUs.
	Pairs []Pair `json:"pairs"`
	// Error states why NVML is not available.
	Error string `json:"nvml_error,omitempty"`
}

// Pair describes the access of one GPU to the memory of another.
type Pair struct {
	From int `json:"from"`
	To   int `json:"to"`
	// Access is set if kernels on From can access the memory of To.
	Access bool `json:"access"`
	// Atomics is set if kernels on From can use atomic operations on the memory of To.
	Atomics bool `json:"atomics"`
	// SpeedRank orders pairs by the speed of their links. The pairs with the fastest links have 0.
	SpeedRank int `json:"rank"`
	// NVLink is "yes", "no", or "unknown".
	NVLink string `json:"nvlink"`
}

// InspectLinks queries CUDA for each pair of GPUs, and NVML for NVLinks.
func InspectLinks(gpus []GPU) Links {
	l := Links{Pairs: []Pair{}}
	if len(gpus) < 2 {
		return l
	}
	if driver, err := cuda.Load(); err == nil {
		l.queryCUDA(driver, len(gpus))
	}
	if err := l.queryNVML(gpus); err != nil {
		l.Error = err.Error()
	}
	return l
}

func (l *Links) queryCUDA(driver *cuda.Driver, n int) {
	for from := range n {
		for to := range n {
			a, errA := driver.Device(from)
			b, errB := driver.Device(to)
			if from == to || errA != nil || errB != nil {
				continue
			}
			p := Pair{From: from, To: to, NVLink: "unknown"}
			can, err := a.CanAccessPeer(b)
			p.Access = err == nil && can
			value := func(attribute cuda.P2PAttribute) int {
				v, err := a.P2PAttribute(attribute, b)
				if err != nil {
					return 0
				}
				return v
			}
			p.Atomics = value(cuda.P2PNativeAtomicSupported) != 0
			p.SpeedRank = value(cuda.P2PPerformanceRank)
			l.Pairs = append(l.Pairs, p)
		}
	}
}

// queryNVML adds facts from NVML. If NVML does not support a query, the fact remains unknown.
func (l *Links) queryNVML(gpus []GPU) error {
	m, err := openNVML()
	if err != nil {
		return err
	}
	defer m.close()
	devices := make([]nvmlDevice, len(gpus))
	for i := range gpus {
		if devices[i], err = m.device(gpus[i].PCI); err != nil {
			return fmt.Errorf("finding GPU %d: %w", i, err)
		}
	}
	for i := range l.Pairs {
		p := &l.Pairs[i]
		connected, err := m.connected(devices[p.From], devices[p.To])
		switch {
		case errors.Is(err, errNVMLUnsupported):
		case err != nil:
			return fmt.Errorf("querying the link between GPUs %d and %d: %w", p.From, p.To, err)
		default:
			p.NVLink = yesNo(connected)
		}
	}
	for _, d := range devices {
		l.ActiveNVLinks = append(l.ActiveNVLinks, m.activeLinks(d))
	}
	return nil
}

func judgeLinks(f *Facts, s *Section) {
	l := &f.Links
	if len(f.GPUs) < 2 {
		return
	}
	count := len(l.Pairs)
	blocked := l.list(func(p *Pair) bool { return !p.Access })
	if len(blocked) > 0 {
		s.add(Warn, "see nvidia-smi topo -p2p r; if the GPUs are connected by PCI Express, disable ACS "+
			"on the bridges; in a virtual machine, check the hypervisor's settings", "%d of %d "+
			"pairs of GPUs have no peer access, so groups that include such a pair have no windows: %s",
			len(blocked), count, abbreviate(blocked))
	} else {
		s.ok("peer access: all %d pairs of GPUs", count)
	}
	unconnected := l.list(func(p *Pair) bool { return p.NVLink == "no" })
	unknown := l.list(func(p *Pair) bool { return p.NVLink == "unknown" })
	switch {
	case len(unknown) > 0:
		s.ok("NVLink: unknown (%s)", whyUnknown(l.Error))
	case len(unconnected) > 0:
		s.add(Warn, "form groups of ranks whose GPUs are connected by NVLink; see nvidia-smi topo -m",
			"%d of %d pairs of GPUs are not connected by NVLink; NCCL 2.29 and newer have window "+
				"kernels only for groups in which NVLink connects all pairs: %s", len(unconnected), count,
			abbreviate(unconnected))
	default:
		s.ok("NVLink: all %d pairs of GPUs; active links on each GPU: %s", count,
			numbers(l.ActiveNVLinks))
	}
	if len(l.ActiveNVLinks) > 0 && slices.Max(l.ActiveNVLinks) != slices.Min(l.ActiveNVLinks) {
		s.add(Warn, "see nvidia-smi nvlink --status", "the GPUs have different numbers of active "+
			"NVLinks: %s", numbers(l.ActiveNVLinks))
	}
}

func whyUnknown(err string) string {
	if err == "" {
		return "NVML does not report it"
	}
	return err
}

func (l *Links) list(match func(*Pair) bool) []string {
	var all []string
	for i := range l.Pairs {
		if p := &l.Pairs[i]; match(p) {
			all = append(all, fmt.Sprintf("%d to %d", p.From, p.To))
		}
	}
	return all
}

func abbreviate(list []string) string {
	const limit = 8
	if len(list) > limit {
		return strings.Join(list[:limit], ", ") + ", ..."
	}
	return strings.Join(list, ", ")
}

func numbers(list []int) string {
	if len(list) == 0 {
		return "unknown"
	}
	return strings.Trim(fmt.Sprint(list), "[]")
}
