"""What the configuration says of the API's answers, read once."""

from dataclasses import dataclass

from oslo_config import cfg


@dataclass(frozen=True, slots=True)
class Settings:
    """The options that operations go by; see group ``placement_api`` of the sample configuration."""

    max_body_bytes: int
    incomplete_project_id: str
    incomplete_user_id: str
    randomize_allocation_candidates: bool
    max_allocation_candidates: int

    @classmethod
    def of(cls, conf: cfg.ConfigOpts) -> "Settings":
        """Return what a configuration says."""
        group = conf.placement_api
        return cls(
            max_body_bytes=group.max_body_bytes,
            incomplete_project_id=group.incomplete_consumer_project_id,
            incomplete_user_id=group.incomplete_consumer_user_id,
            randomize_allocation_candidates=group.randomize_allocation_candidates,
            max_allocation_candidates=group.max_allocation_candidates,
        )
