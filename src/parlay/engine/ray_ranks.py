"""Ranks that Ray starts on the machines of its cluster, each as an actor (https://docs.ray.io)."""

import os
import secrets
import weakref
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any

from parlay import env, log
from parlay.engine.joined_ranks import JoinedRanks, end
from parlay.engine.joining import RankListener, listen
from parlay.engine.rank import Assignment, join
from parlay.errors import ConfigError, RankError, brief
from parlay.parallel.gloo import Gloo, GlooRing

_ROOM = 30.0  # seconds that the cluster may take to find room


class Rank:
    """A rank on another machine, as a Ray actor."""

    def run(self, address: tuple[str, int], key: bytes, sharing: int) -> None:
        """Run as a rank until the engine ends.

        Args:
            address: host and port of rank 0.
            key: secret that both sides know.
            sharing: number of ranks that divide this machine's threads and memory.
        """
        log.configure()
        env.adopt(env.share(sharing))
        join(address, key)


class RayRanks(JoinedRanks):
    """A group of ranks on a Ray cluster: the one that RAY_ADDRESS names, the one of this machine, or a new one."""

    def __init__(self, size: int) -> None:
        """Reserve a processor for each rank: one here, the others as far apart as the cluster has machines.

        Raises:
            ConfigError: Ray is not installed, there is no cluster, or none with enough room.
        """
        try:
            import ray
            from ray.util.placement_group import placement_group
        except ImportError:
            raise ConfigError(
                "distributed_executor_backend='ray' needs the package ray; pip install 'parlay[ray]'"
            ) from None
        cluster: Any = ray
        self._ray = cluster
        try:
            cluster.init(ignore_reinit_error=True)
            here = cluster.util.get_node_ip_address()
            # The first bundle is this process's.
            bundles = [{"CPU": 1.0, f"node:{here}": 0.001}, *({"CPU": 1.0} for _ in range(1, size))]
            self._bundles: Any = placement_group(bundles, strategy="SPREAD")
            found, _ = cluster.wait([self._bundles.ready()], timeout=_ROOM)
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise ConfigError(f"no Ray cluster can be used: {brief(str(error))}") from None
        if not found:
            room = cluster.cluster_resources().get("CPU", 0)
            cluster.util.remove_placement_group(self._bundles)
            raise ConfigError(
                f"the Ray cluster has no room for {size} ranks: each needs a processor, one of them on this machine, "
                f"and the cluster has {room:.0f} in all; add machines or free some"
            )
        super().__init__(size, listen((here, 0)), secrets.token_bytes(32))
        self._actors: list[Any] = []
        self._runs: list[Any] = []
        self._nodes = cluster.util.placement_group_table(self._bundles)["bundles_to_node_id"]
        self.memory_shares = self._sharing(0)
        self.threads = env.threads_of(self.memory_shares)
        others = self._entrance, self._links, self._ways
        self.close = weakref.finalize(self, _close, os.getpid(), cluster, self._bundles, self._actors, *others)

    def _sharing(self, rank: int) -> int:
        """Return how many ranks are on the machine of one."""
        return list(self._nodes.values()).count(self._nodes[rank])

    def start(self, first: Assignment) -> None:
        """Start the actors, wait until all have joined, and have them load their weights.

        Raises:
            RankError: some do not come, or do not reach each other.
        """
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        actor = self._ray.remote(num_cpus=1, max_restarts=0)(Rank)
        for rank in range(1, self._size):
            place = PlacementGroupSchedulingStrategy(self._bundles, placement_group_bundle_index=rank)
            self._actors.append(actor.options(scheduling_strategy=place).remote())
            self._runs.append(self._actors[-1].run.remote((self._host, self._port), self._key, self._sharing(rank)))
        super().start(first)

    def _check(self) -> None:
        ended, _ = self._ray.wait(self._runs, timeout=0)
        for one in ended:
            try:
                self._ray.get(one)
            except Exception as error:  # of any kind that the other machine or Ray may raise
                raise RankError(f"a rank could not start: {brief(str(error))}") from None


def _close(
    owner: int,
    ray: Any,
    bundles: Any,
    actors: Sequence[Any],
    entrance: RankListener,
    links: "list[Connection[bytes, bytes]]",
    ways: "list[Gloo | GlooRing]",
) -> None:
    """End all actors, and give the cluster its processors back. A fork has none to end."""
    end(owner, entrance, links, ways)
    if os.getpid() == owner and ray.is_initialized():
        for actor in actors:
            ray.kill(actor)
        ray.util.remove_placement_group(bundles)
