package cuda

import (
	"runtime"

	"symmem/internal/dl"
)

// graphs calls the functions for graphs.
type graphs struct{ table }

// Graph is work that can be launched repeatedly (CUgraph). It consists of nodes, such as kernels,
// and of dependencies between nodes.
type Graph uintptr

// Node is a node of a Graph (CUgraphNode), valid until the graph is destroyed.
type Node uintptr

// GraphExec is the executable form of a graph (CUgraphExec).
type GraphExec uintptr

// GraphInstantiate makes a GraphExec that remains valid if the graph changes or is destroyed.
func (g *graphs) GraphInstantiate(graph Graph) (GraphExec, error) {
	const noFlags = 0
	return getValue[GraphExec](&g.table, graphInstantiate, uintptr(graph), noFlags)
}

// GraphLaunch queues a graph on a stream. Launches of one GraphExec never overlap.
func (g *graphs) GraphLaunch(exec GraphExec, stream Stream) error {
	return g.call(graphLaunch, uintptr(exec), uintptr(stream))
}

// GraphExecDestroy destroys a GraphExec. Its queued launches still run.
func (g *graphs) GraphExecDestroy(exec GraphExec) error {
	return g.call(graphExecDestroy, uintptr(exec))
}

// GraphDestroy destroys a graph.
func (g *graphs) GraphDestroy(graph Graph) error { return g.call(graphDestroy, uintptr(graph)) }

// GraphAddEventRecord adds a node that records an event after all dependencies.
func (g *graphs) GraphAddEventRecord(graph Graph, dependencies []Node, event Event) (Node, error) {
	node, err := getValue[Node](&g.table, graphAddEventRecord, uintptr(graph),
		addressOf(dependencies), uintptr(len(dependencies)), uintptr(event))
	runtime.KeepAlive(dependencies)
	return node, err
}

// addressOf returns the address of the first node, or 0 if there is none. The caller must keep
// nodes alive while C code uses the address.
func addressOf(nodes []Node) uintptr {
	if len(nodes) == 0 {
		return 0
	}

	return dl.AddressOf(&nodes[0])
}

// GraphAddDependencies makes each successors[i] depend on nodes[i].
func (g *graphs) GraphAddDependencies(graph Graph, nodes, successors []Node) error {
	return g.changeDependencies(graphAddDependencies2, graphAddDependencies, graph, nodes, successors)
}

// GraphRemoveDependencies removes the dependency of each successors[i] on nodes[i].
func (g *graphs) GraphRemoveDependencies(graph Graph, nodes, successors []Node) error {
	return g.changeDependencies(graphRemoveDependencies2, graphRemoveDependencies, graph, nodes,
		successors)
}

// changeDependencies calls newFunction or, on a driver that lacks it, oldFunction.
func (g *graphs) changeDependencies(
	newFunction, oldFunction function, graph Graph, nodes, successors []Node,
) error {
	defer runtime.KeepAlive(nodes)
	defer runtime.KeepAlive(successors)
	pairCount := uintptr(min(len(nodes), len(successors)))
	if g.has(newFunction) {
		const noEdgeData = 0
		return g.call(newFunction, uintptr(graph), addressOf(nodes), addressOf(successors),
			noEdgeData, pairCount)
	}

	return g.call(oldFunction, uintptr(graph), addressOf(nodes), addressOf(successors), pairCount)
}

// userObject is a reference-counted object with a destructor (CUuserObject).
type userObject uintptr

const oneReference = 1

// CallAfterGraph makes CUDA call cleanup once, after the last launch has ended and the graph, its
// clones, GraphExecs and parent graphs have been destroyed. The graph may still be under capture.
//
// cleanup runs on a CUDA thread. It must not call CUDA or NCCL, wait for a thread that does, or
// panic. It does not run if CallAfterGraph fails. Before CUDA 11.3, the error is a *MissingError.
func (g *graphs) CallAfterGraph(graph Graph, cleanup func()) error {
	for _, f := range []function{userObjectCreate, userObjectRelease, graphRetainUserObject} {
		if !g.has(f) {
			return &MissingError{Function: names[f], Path: g.library.Path()}
		}
	}

	destructor := NewHostFuncOnce(cleanup)
	object, err := g.createUserObject(destructor)
	if err != nil {
		destructor.Release()
		return err
	}

	const moveReferences = 1 // CU_GRAPH_USER_OBJECT_MOVE: the graph takes over the reference
	err = g.call(graphRetainUserObject, uintptr(graph), uintptr(object), oneReference,
		moveReferences)
	if err != nil {
		destructor.Release() // so that userObjectRelease does not run cleanup
		_ = g.call(userObjectRelease, uintptr(object), oneReference)
	}

	return err
}

// createUserObject returns a userObject with one reference.
func (g *graphs) createUserObject(destructor HostFunc) (userObject, error) {
	const noDestructorSync = 1 // CU_USER_OBJECT_NO_DESTRUCTOR_SYNC: the only supported flag
	cell := dl.NewCell(userObject(0))
	err := g.call(userObjectCreate, cell.Address(), uintptr(destructor), hostCallback(),
		oneReference, noDestructorSync)
	return cell.Take(), err
}
