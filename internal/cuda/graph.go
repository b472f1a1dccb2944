package cuda

import (
	"runtime"

	"symmem/internal/dl"
)

// graphs calls the functions for graphs.
type graphs struct{ table }

// Graph is work that can be launched repeatedly (CUgraph): nodes, such as kernels, with
// dependencies between them.
type Graph uintptr

// Node is valid as long as its graph (CUgraphNode).
type Node uintptr

// GraphExec is the executable form of a graph (CUgraphExec).
type GraphExec uintptr

// GraphInstantiate makes a GraphExec, which does not depend on the graph afterwards.
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

// GraphAddEventRecord adds a node that records an event after the given nodes have run.
func (g *graphs) GraphAddEventRecord(graph Graph, nodes []Node, event Event) (Node, error) {
	node, err := getValue[Node](&g.table, graphAddEventRecord, uintptr(graph), addressOf(nodes),
		uintptr(len(nodes)), uintptr(event))
	runtime.KeepAlive(nodes)
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
	return g.changeDependencies(graphAddDependencies, graphAddDependencies2, graph, nodes, successors)
}

// GraphRemoveDependencies removes the dependency of each successors[i] on nodes[i].
func (g *graphs) GraphRemoveDependencies(graph Graph, nodes, successors []Node) error {
	return g.changeDependencies(graphRemoveDependencies, graphRemoveDependencies2, graph, nodes,
		successors)
}

// changeDependencies calls newFunction, which also takes data of dependencies (edges), or
// oldFunction if the driver lacks it.
func (g *graphs) changeDependencies(
	oldFunction, newFunction function, graph Graph, nodes, successors []Node,
) error {
	defer runtime.KeepAlive(nodes)
	defer runtime.KeepAlive(successors)
	n := uintptr(min(len(nodes), len(successors)))
	hasNew := g.symbols[newFunction] != 0
	if hasNew {
		const noEdgeData = 0
		return g.call(newFunction, uintptr(graph), addressOf(nodes), addressOf(successors),
			noEdgeData, n)
	}

	return g.call(oldFunction, uintptr(graph), addressOf(nodes), addressOf(successors), n)
}

// CallAfterGraph makes CUDA call end once, after all launches have ended and the graph, its clones,
// GraphExecs and parent graphs have been destroyed. The graph may still be under capture.
//
// end runs on a CUDA thread. It must not call CUDA or NCCL, wait for a thread that does, or panic.
// If CallAfterGraph fails, end is not called. Before CUDA 11.3, the error is a *MissingError.
func (g *graphs) CallAfterGraph(graph Graph, end func()) error {
	for _, f := range []function{userObjectCreate, userObjectRelease, graphRetainUserObject} {
		isMissing := g.symbols[f] == 0
		if isMissing {
			return &MissingError{Function: names[f], Path: g.library.Path()}
		}
	}

	work := NewHostFuncOnce(end)
	object, err := g.createUserObject(work)
	if err != nil {
		work.Release()
		return err
	}

	const moveReferences = 1 // CU_GRAPH_USER_OBJECT_MOVE: the graph takes over the reference
	err = g.call(graphRetainUserObject, uintptr(graph), uintptr(object), oneReference,
		moveReferences)
	if err != nil {
		work.Release() // first, so that the destructor does not call end

		// Report only the first error.
		_ = g.call(userObjectRelease, uintptr(object), oneReference)
	}

	return err
}

// userObject is a reference-counted object with a destructor (CUuserObject).
type userObject uintptr

const oneReference = 1

// createUserObject returns a userObject with one reference and the destructor work.
func (g *graphs) createUserObject(work HostFunc) (userObject, error) {
	const noDestructorSync = 1 // CU_USER_OBJECT_NO_DESTRUCTOR_SYNC: the only supported flag
	cell := dl.NewCell(userObject(0))
	err := g.call(userObjectCreate, cell.Address(), uintptr(work), hostCallback(), oneReference,
		noDestructorSync)
	return cell.Take(), err
}
