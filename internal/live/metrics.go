package live

import (
	"cmp"
	"net/http"
	"os"
	"strconv"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

func writeMetrics(w http.ResponseWriter, r *http.Request, m Machine) {
	registry := prometheus.NewRegistry()
	if err := registry.Register(&collector{m}); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}

	promhttp.HandlerFor(registry, promhttp.HandlerOpts{
		ErrorHandling: promhttp.ContinueOnError,
	}).ServeHTTP(w, r)
}

type metric struct {
	desc *prometheus.Desc
	kind prometheus.ValueType
}

func newMetric(name, help string, kind prometheus.ValueType, labels ...string) metric {
	return metric{prometheus.NewDesc(name, help, labels, nil), kind}
}

// inspectorLabels lists the labels of NCCL Inspector, followed by the rank and by where the time is
// measured.
var inspectorLabels = []string{
	"version", "slurm_job_id", "node", "gpu", "comm_name", "n_nodes", "nranks", "collective",
	"message_size", "algo_proto", "rank", "timing_source",
}

const (
	gauge   = prometheus.GaugeValue
	counter = prometheus.CounterValue
)

// Metrics with the prefix nccl have the names of NCCL Inspector.
var (
	busBandwidth = newMetric("nccl_bus_bandwidth_gbs",
		"Bus bandwidth in GB/s, averaged over the latest timed calls.", gauge, inspectorLabels...)
	executionTime = newMetric("nccl_collective_exec_time_microseconds",
		"Execution time, including waits for other ranks, averaged over the latest timed calls.", gauge,
		inspectorLabels...)

	rankUp = newMetric("symmem_up", "1 if the rank answered, 0 if it is stopped or has ended.", gauge,
		"rank")
	waitSeconds = newMetric("symmem_wait_seconds",
		"How long the rank has waited for another rank.", gauge, "rank", "comm_name", "awaited_rank")
	groupFailed = newMetric("symmem_group_failed", "1 if the group has a fault.", gauge,
		"rank", "comm_name")
	collectiveCount = newMetric("symmem_collectives_total",
		"Collectives, including those in replays of graphs.", counter, "rank", "comm_name", "path")
	callCount = newMetric("symmem_calls_total",
		"Calls of the program. Replays of graphs are not calls.", counter, callLabels...)
	callBytes = newMetric("symmem_call_bytes_total", "Sizes of the larger buffers of calls.", counter,
		callLabels...)
	submitTime = newMetric("symmem_submit_seconds",
		"Time until a call returns. One call in 128, and every call of 1 MiB or more, is timed. On "+
			"a GPU, calls return before their work has run.", counter, callLabels...)
	runTime = newMetric("symmem_run_seconds",
		"Time that a call runs, including waits for other ranks. One call in 128 is timed. The host "+
			"backend also times every call of 1 MiB or more.", counter, callLabels...)
	windowCount = newMetric("symmem_windows", "Segments registered with the group.", gauge,
		"rank", "comm_name")
	registrationCount = newMetric("symmem_registrations_total", "Calls that registered segments.",
		counter, "rank", "comm_name")
	agreementCount = newMetric("symmem_agreements_total",
		"Comparisons of histories without a difference.", counter, "rank", "comm_name")

	poolBytes = newMetric("symmem_pool_bytes",
		"Sizes of a pool: used, requested, high_water, cached, largest_free, deferred and pinned.",
		gauge, "rank", "comm_name", "pool", "kind")
	poolSegments = newMetric("symmem_pool_segments", "Segments of a pool.", gauge,
		"rank", "comm_name", "pool")
	poolEvents = newMetric("symmem_pool_events_total", "Events in the history of a pool.", counter,
		"rank", "comm_name", "pool")
)

var callLabels = []string{"rank", "comm_name", "collective", "path", "message_size"}

type collector struct{ machine Machine }

// Describe sends nothing, because the metrics depend on the ranks.
func (c *collector) Describe(chan<- *prometheus.Desc) {}

// Collect sends the metrics of all ranks.
func (c *collector) Collect(metrics chan<- prometheus.Metric) {
	for i := range c.machine.Ranks {
		r := rankCollector{
			metrics: metrics, rank: &c.machine.Ranks[i], number: strconv.Itoa(c.machine.Ranks[i].Rank),
			host: c.machine.Host,
		}
		r.collect()
	}
}

type rankCollector struct {
	metrics chan<- prometheus.Metric
	rank    *Snapshot
	number  string
	host    string
}

// send sends a value with the rank and the given labels.
func (r *rankCollector) send(m metric, value float64, labels ...string) {
	series, err := prometheus.NewConstMetric(m.desc, m.kind, value, r.labels(labels)...)
	if err == nil {
		r.metrics <- series
	}
}

// labels adds the rank to a list of labels. It replaces invalid UTF-8, because group names may
// contain any bytes.
func (r *rankCollector) labels(labels []string) []string {
	all := []string{r.number}
	for _, l := range labels {
		all = append(all, strings.ToValidUTF8(l, "?"))
	}

	return all
}

func (r *rankCollector) collect() {
	if r.rank.Error != "" {
		r.send(rankUp, 0)
		return
	}

	r.send(rankUp, 1)
	r.collectWaits()
	// A failed group and its successor may have the same name, and so may their pools. The last one
	// is collected.
	groups := map[string]*Group{}
	for i := range r.rank.Groups {
		groups[r.rank.Groups[i].ID] = &r.rank.Groups[i]
	}

	for _, g := range groups {
		r.collectGroup(g)
	}

	type key struct {
		domain string
		id     uint64
	}
	pools := map[key]*Pool{}
	for i := range r.rank.Pools {
		pools[key{r.rank.Pools[i].Domain, r.rank.Pools[i].ID}] = &r.rank.Pools[i]
	}

	for _, p := range pools {
		r.collectPool(p)
	}
}

func (r *rankCollector) collectWaits() {
	type key struct {
		group string
		rank  int
	}
	longest := map[key]float64{}
	for _, w := range r.rank.Waits {
		for _, awaitedRank := range w.Ranks {
			k := key{w.Group, awaitedRank}
			longest[k] = max(longest[k], w.Seconds)
		}
	}

	for k, seconds := range longest {
		r.send(waitSeconds, seconds, k.group, strconv.Itoa(k.rank))
	}
}

func (r *rankCollector) collectGroup(g *Group) {
	fault := 0.0
	if g.State != "open" {
		fault = 1
	}

	r.send(groupFailed, fault, g.ID)
	r.send(windowCount, float64(g.Windows), g.ID)
	r.send(registrationCount, float64(g.Registrations), g.ID)
	r.send(agreementCount, float64(g.Agreements), g.ID)
	for path, n := range g.Paths {
		r.send(collectiveCount, float64(n), g.ID, path)
	}

	for i := range g.Calls {
		r.collectCalls(g, &g.Calls[i])
	}
}

func (r *rankCollector) collectCalls(g *Group, c *Calls) {
	labels := []string{g.ID, c.Operation, c.Path, sizeRange(c.MinBytes, c.MaxBytes)}
	r.send(callCount, float64(c.Calls), labels...)
	r.send(callBytes, float64(c.Bytes), labels...)
	r.sendTimes(submitTime, c.Submit, labels)
	if c.Run == nil || c.Run.Samples == 0 {
		return
	}

	r.sendTimes(runTime, *c.Run, labels)
	seconds := c.Run.RecentSeconds
	r.sendInspector(executionTime, seconds*1e6, g, c)
	if factor, ok := busFactor(c.Operation, len(g.Ranks)); ok && seconds > 0 {
		r.sendInspector(busBandwidth, factor*float64(c.Run.RecentBytes)/seconds/1e9, g, c)
	}
}

func (r *rankCollector) sendTimes(m metric, t Times, labels []string) {
	series, err := prometheus.NewConstSummary(m.desc, t.Samples, t.Seconds, nil, r.labels(labels)...)
	if err == nil && t.Samples > 0 {
		r.metrics <- series
	}
}

func (r *rankCollector) sendInspector(m metric, value float64, g *Group, c *Calls) {
	gpu, source := "unknown", "host"
	if r.rank.GPU >= 0 {
		gpu, source = "GPU"+strconv.Itoa(r.rank.GPU), "gpu"
	}

	job := cmp.Or(os.Getenv("SLURM_JOB_ID"), os.Getenv("SLURM_JOBID"), "unknown")
	series, err := prometheus.NewConstMetric(m.desc, m.kind, value,
		"symmem", job, r.host, gpu, strings.ToValidUTF8(g.ID, "?"), strconv.Itoa(g.Machines),
		strconv.Itoa(len(g.Ranks)), c.Operation, sizeRange(c.MinBytes, c.MaxBytes), "symmem_"+c.Path,
		r.number, source)
	if err == nil {
		r.metrics <- series
	}
}

func (r *rankCollector) collectPool(p *Pool) {
	if p.Busy {
		return
	}

	id := strconv.FormatUint(p.ID, 10)
	for kind, bytes := range map[string]int64{
		"used": p.Used, "requested": p.Requested, "high_water": p.HighWater, "cached": p.Cached,
		"largest_free": p.LargestFree, "deferred": p.Deferred, "pinned": p.Pinned,
	} {
		r.send(poolBytes, float64(bytes), p.Domain, id, kind)
	}

	r.send(poolSegments, float64(p.Segments), p.Domain, id)
	r.send(poolEvents, float64(p.Events), p.Domain, id)
}

// busFactor returns the factor from the size of a call to its bus bandwidth in nccl-tests and NCCL
// Inspector. ok is false if the operation moves no data.
func busFactor(operation string, n int) (factor float64, ok bool) {
	ranks := float64(n)
	switch operation {
	case "Barrier":
		return 0, false
	case "AllReduce", "AllReduceRMSNorm":
		return 2 * (ranks - 1) / ranks, true
	case "Broadcast", "Reduce":
		return 1, true
	}

	return (ranks - 1) / ranks, true
}

// sizeRange formats a range of sizes like NCCL Inspector, such as "64-128KB".
func sizeRange(least, limit int64) string {
	units := []string{"B", "KB", "MB", "GB", "TB"}
	for len(units) > 1 && least >= 1024 {
		least, limit, units = least/1024, limit/1024, units[1:]
	}

	return strconv.FormatInt(least, 10) + "-" + strconv.FormatInt(limit, 10) + units[0]
}
